"""Lower bounds on mu from counted guesses, and the exact conversions, worked out a second time.

Nothing here uses `private.accounting`: an audit that borrowed the arithmetic of what it audits would
share its mistakes.

An audit for people: a table and a picture.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float
from rich.table import Table
from scipy import optimize, stats

if TYPE_CHECKING:
    from blindstep.insight.audit import Audit


def clopper_pearson_lower(hits: int, trials: int, miss: float) -> float:
    """The rate that `hits` in `trials` independent trials prove, wrong with probability <= miss."""
    return 0.0 if hits == 0 else float(stats.beta.ppf(miss, hits, trials - hits + 1))


def clopper_pearson_upper(hits: int, trials: int, miss: float) -> float:
    """The rate that cannot be exceeded, wrong with probability <= miss."""
    return 1.0 - clopper_pearson_lower(trials - hits, trials, miss)


def mu_lower_bound(
    scores: Float[np.ndarray, " n"],
    neighbour_scores: Float[np.ndarray, " m"],
    confidence: float = 0.999,
) -> float:
    """Mu that must hold, with this confidence, given scores from two neighbouring data sets.

    An attack with true positive rate a and false positive rate b proves mu >= Phi^-1(a) - Phi^-1(b)
    (Dong, Roth and Su 2022: a mu-Gaussian-DP mechanism admits no other). Each rate is bounded by
    Clopper and Pearson (1934) at half of the allowed failure probability, so scores of the two data
    sets may depend on each other; those of one data set must be independent, and the threshold is
    0, fixed beforehand.
    """
    miss = (1 - confidence) / 2
    hits, alarms = int(np.sum(neighbour_scores > 0)), int(np.sum(scores > 0))
    caught = clopper_pearson_lower(hits, len(neighbour_scores), miss)
    false = clopper_pearson_upper(alarms, len(scores), miss)
    return max(0.0, float(stats.norm.ppf(caught) - stats.norm.ppf(false)))


def mu_from_guesses(correct: int, guesses: int, confidence: float = 0.999) -> float:
    """Mu that `correct` guesses of fair, independent coins prove, one coin for each block of a run.

    Steinke, Nasr and Jagielski (2023) audit with many canaries in one run. Here they stand in
    disjoint blocks, which makes it simple and exact. Given everything released before block b, the
    block's transcript under the two values of its coin is a mu-Gaussian-DP pair, so a guess is
    right with probability at most

        max over tests of (true positives + true negatives) / 2 = Phi(mu / 2).

    What comes later depends on the coin through the transcript only. So the number of correct
    guesses is stochastically below Binomial(guesses, Phi(mu / 2)), whatever the blocks have to do
    with each other, and Clopper-Pearson holds for it.
    """
    rate = clopper_pearson_lower(correct, guesses, 1 - confidence)
    return max(0.0, 2.0 * float(stats.norm.ppf(rate)))


def expected_lower_bound(mu: float, trials: int, confidence: float = 0.999) -> float:
    """What `mu_lower_bound` gives where mu is the truth and every rate comes out as expected."""
    miss, rate = (1 - confidence) / 2, float(stats.norm.cdf(mu / 2))
    lower = clopper_pearson_lower(round(rate * trials), trials, miss)
    return max(0.0, 2.0 * float(stats.norm.ppf(lower)))


def epsilon_at(mu: float, delta: float) -> float:
    """Epsilon of mu-Gaussian-DP at delta, by bisection on the hockey-stick divergence of the pair.

    delta(epsilon) = P(N(mu, 1) > t) - e^epsilon P(N(0, 1) > t) at t = epsilon / mu + mu / 2, where the
    densities' ratio is e^epsilon.
    """
    if mu <= 0:
        return 0.0

    def excess(epsilon: float) -> float:
        threshold = epsilon / mu + mu / 2
        lost = math.exp(epsilon + stats.norm.logsf(threshold))
        return float(stats.norm.sf(threshold - mu) - lost - delta)

    if excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2
    return float(optimize.bisect(excess, 0.0, high, xtol=1e-12, rtol=1e-13))  # pyright: ignore


def audit_table(audit: Audit) -> Table:
    """Claim against measurement, the exact checks and the verdict."""
    checks = [f"{'yes' if good else 'NO '}  {name}" for name, good in audit.checks.items()]
    table = Table(
        title=f"Audit ({audit.attack}, method {audit.method})",
        caption="\n".join([*checks, "", f"{audit.verdict}. {audit.reason}"]),
        title_justify="left",
        caption_justify="left",
        caption_style="green" if audit.holds else "bold red",
    )
    table.add_column("", style="bold")
    table.add_column("mu", justify="right")
    table.add_column(f"epsilon at delta = {audit.delta:g}", justify="right")
    table.add_column("meaning", style="dim")
    trials = "pairs of transcripts" if audit.method == "many-runs" else "canaries in one run"
    table.add_row(
        "claimed", f"{audit.claimed_mu:.6g}", f"{audit.claimed_epsilon:.6g}", "the plan's statement"
    )
    table.add_row(
        "measured, at least",
        f"{audit.lower_bound_mu:.6g}",
        f"{audit.lower_bound_epsilon:.6g}",
        f"confidence {audit.confidence:g}, {audit.pairs:,} {trials}"
        + (f", {audit.group} records at once" if audit.group > 1 else "")
        + (f", {audit.passes} passes composed" if audit.passes > 1 else ""),
    )
    return table


def save_plot(audit: Audit, path: str | os.PathLike[str]) -> None:
    """Draw the scores of both worlds, and the trade-off they prove against the one claimed.

    The trade-off curve gives, for each rate of false positives, the least rate of false negatives;
    a mu-Gaussian-DP mechanism allows nothing below Phi(Phi^-1(1 - x) - mu). Drawn for what one trial
    attacks: one pass, and as many records as were changed at once.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    mu = audit.claimed_mu * audit.group / audit.passes**0.5
    worlds = (audit.scores, audit.neighbour_scores)
    low, high = np.quantile(np.concatenate(worlds), (0.0005, 0.9995))
    edges = np.linspace(low, high, 70)
    grid = np.linspace(low, high, 400)
    for scores, sign, colour in zip(worlds, (-1, 1), ("tab:blue", "tab:orange"), strict=True):
        left.hist(scores, edges, density=True, alpha=0.45, color=colour, label=f"record {sign:+d}")
        left.plot(grid, stats.norm.pdf(grid, sign * mu / 2), color=colour)
    left.axvline(0, color="gray", linewidth=0.8, linestyle=":")
    left.set(
        title="Scores of the attack; lines: claimed",
        xlabel="score (standard deviations)",
        ylabel="density",
    )
    left.legend(frameon=False)
    rates = np.linspace(1e-4, 1 - 1e-4, 400)
    right.plot(
        rates, stats.norm.cdf(stats.norm.ppf(1 - rates) - mu), label=f"claimed, mu = {mu:.3g}"
    )
    thresholds = np.quantile(audit.scores, 1 - rates)
    missed = np.searchsorted(np.sort(audit.neighbour_scores), thresholds) / len(worlds[1])
    right.plot(rates, missed, "--", label="measured")
    right.plot([0, 1], [1, 0], color="gray", linewidth=0.8, linestyle=":")
    right.set(
        title=f"Trade-off of the attack: {audit.verdict}",
        xlabel="false positives",
        ylabel="false negatives",
        xlim=(0, 1),
        ylim=(0, 1),
    )
    right.legend(frameon=False)
    figure.savefig(path, dpi=150)
