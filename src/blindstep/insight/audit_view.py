"""An audit for people: a table and a picture."""

from __future__ import annotations

import os

import numpy as np
from rich.table import Table
from scipy import stats

from blindstep.insight.audit import Audit


def audit_table(audit: Audit) -> Table:
    """Claim against measurement, the exact checks and the verdict."""
    checks = [f"{'yes' if good else 'NO '}  {name}" for name, good in audit.checks.items()]
    table = Table(
        title=f"Audit ({audit.method}, preset {audit.preset})",
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
