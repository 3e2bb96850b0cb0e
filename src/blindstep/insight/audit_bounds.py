"""The audit's attack over many short runs, and the lower bounds on mu that counted guesses prove.

Nothing here uses `private.accounting`: an audit that borrowed the arithmetic of what it audits would
share its mistakes.

A *trial* is what one noise key adds in one direction over the releases of a block. In direction 0
the two data sets differ, and both are really run. The other directions are orthogonal to it: the
noise there is that of the same real releases, and the trial asks what a record that pushes that way
would have caused. Coordinates are promised independent noise, so directions are independent trials.

The adversary knows everything except which record was used, and does not believe what the code
claims about its noise. From some of the keys it learns the covariance of all that it sees: in the
block of the changed record, in the next one, and in the first ones of the next round and the next
pass. Its score is the best linear one for *that* noise. So it gains from noise that is reused in
another step, block, round or pass, or that is missing somewhere. The score is then fixed, and the
other keys are counted.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float
from rich.table import Table
from scipy import optimize, stats

from blindstep.insight.audit_scene import Blocks, Scene
from blindstep.planning.plan import Plan
from blindstep.private.mechanisms import matrix_of

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
    trials = "pairs of transcripts" if audit.attack == "many-runs" else "canaries in one run"
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
    attacked = audit.membership
    if attacked is not None:
        lower = attacked.lower_bound_mu
        table.add_row(
            "from parameters alone, at least",
            f"{lower:.6g}",
            f"{epsilon_at(lower, audit.delta):.6g}",
            f"confidence {attacked.confidence:g}, {attacked.canaries:,} canaries of this run",
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


_LANES = 64
# Time profiles that are kept of the changed record's block, and of each other block.
_PROFILES, _OTHERS = 48, 16
_MEMORY = 2**28
# Most noise draws: some 20 seconds on an idle core.
_DRAWS = 6e7
# Below this mu an attack on one record is mostly luck: see `group_size`.
_CLEAR = 0.75


@dataclass(frozen=True)
class Trials:
    """Scores of all counted trials on both data sets, in units of their standard deviation."""

    scores: Float[np.ndarray, " n"]  # with the changed record at z = -1
    neighbour_scores: Float[np.ndarray, " m"]  # at z = +1: the adversary says so above 0
    group: int  # records that count as changed
    checks: dict[str, bool]  # exact checks, by name


def group_size(plan: Plan, mu: float, batch: int) -> int:
    """How many records of one batch are taken as changed: one, unless its mu is small.

    Where one record is mu-Gaussian-DP, k are (k mu)-Gaussian-DP (Dong, Roth and Su 2022, Theorem
    2.14), and a larger mu is measured more precisely. One record is really changed; k times its
    shift is what k such records cause whose directions coincide.
    """
    mu_pass = mu / math.sqrt(plan.passes)
    return 1 if mu_pass >= _CLEAR else min(batch, math.ceil(2 * _CLEAR / mu_pass))


def keys_needed(plan: Plan, pairs: int) -> int:
    """Noise keys for `pairs` counted trials and half as many to learn from, within the budget."""
    wanted = math.ceil(1.5 * pairs / min(_LANES, plan.size))
    return max(2, min(wanted, int(_DRAWS / (4 * plan.period * plan.size))))


def measured_costs(scene: Scene, blocks: Blocks, key: np.ndarray) -> Float[np.ndarray, " period"]:
    """How far a changed record moves the first block's releases, for each that it may answer in.

    Measured on one GRAD and one DIFF; other DIFFs differ by their column of C. Declared
    sensitivities are not asked: they are on trial too.
    """

    def moved(step: int) -> float:
        low, high = scene.watch(blocks, scene.batch(blocks, step)[0, :1], key[None])[0, :, 0]
        return float(np.linalg.norm(high - low))

    columns = np.linalg.norm(matrix_of(scene.terms.mechanism), axis=0)
    if len(columns) == 1:
        return np.asarray([moved(0)])
    later = 1 + int(np.argmax(columns[1:]))
    return np.concatenate([[moved(0)], moved(later) * columns[1:] / columns[later]])


def run_trials(
    scene: Scene, mu: float, pairs: int, rng: np.random.Generator, entropy: np.ndarray
) -> Trials:
    """Attack the plan of `scene`, whose claim is `mu`, with about `pairs` counted trials."""
    schedule, plan = scene.terms.schedule, scene.plan
    numbers = {0, 1, plan.horizon // plan.period, schedule.blocks_per_pass}
    parts = [scene.blocks(number) for number in sorted(numbers) if number < schedule.blocks]
    blocks, attacked = Blocks(*map(np.concatenate, zip(*parts, strict=True))), parts[0]
    costs = measured_costs(scene, attacked, entropy[0])
    group = group_size(plan, mu, scene.batch(attacked, int(np.argmax(costs))).size)
    # The row whose change costs most, on the rows as they are: one in several batches comes first.
    cost = np.zeros(plan.records)
    for step, each in enumerate(costs):
        np.add.at(cost, scene.batch(attacked, step)[0], each**2)
    record = np.argmax(cost, keepdims=True)
    whole = scene.watch(attacked, record, entropy[:1])[0, :, 0]
    checks = scene.exact_checks(whole)
    move = whole[1] - whole[0]
    lane = move[np.argmax(np.linalg.norm(move, axis=1))]
    lanes = _basis(lane, min(_LANES, lane.size), rng).T
    # The first profile is how the record's effect runs over its block: under the claim that is all
    # there is to know. The others, random and orthogonal to it, see noise that is not as claimed.
    own = _basis(move @ lanes[0], min(len(move), _PROFILES), rng).T
    profiles = [own] + [own[:_OTHERS]] * (len(parts) - 1)
    chunk = min(_keys_at_once(scene, len(parts), len(lanes)), -(-len(entropy) // 8))
    features = []
    for start in range(0, len(entropy), chunk):
        keys = entropy[start : start + chunk]
        # One shape, one compilation: the last part is filled up and cut.
        seen = scene.watch(blocks, record, np.resize(keys, (chunk, 8)), lanes=lanes)
        features.append(_compressed(seen[: len(keys)], profiles))
    finite = all(np.isfinite(part).all() for part in features)
    checks["every release is finite"] &= finite
    if not finite:
        return Trials(np.zeros(1), np.zeros(1), group, checks)
    scores, neighbour_scores, fixed = _score(np.concatenate(features), pairs, group)
    checks["the noise does not depend on the records"] = fixed
    return Trials(scores, neighbour_scores, group, checks)


def _basis(
    first: Float[np.ndarray, " size"], number: int, rng: np.random.Generator
) -> Float[np.ndarray, "size number"]:
    """Orthonormal columns: the first along `first`, the others random."""
    columns = np.column_stack([first, rng.standard_normal((first.size, number - 1))])
    return np.linalg.qr(columns)[0]


def _keys_at_once(scene: Scene, blocks: int, lanes: int) -> int:
    """Keys whose transcripts, memories and draws fit into memory together."""
    slots = scene.terms.mechanism.init(1).shape[0]
    size, period = scene.terms.size, scene.plan.period
    each = 8 * (2 * blocks * period * lanes + (slots + 24) * size + 4 * scene.plan.dim)
    return max(1, _MEMORY // each)


def _compressed(
    seen: Float[np.ndarray, "keys 2 blocks steps lanes"],
    profiles: list[Float[np.ndarray, "_ steps"]],
) -> Float[np.ndarray, "keys 2 lanes features"]:
    """From releases to a few numbers that say as much: each block along its profiles over time."""
    each = [
        np.einsum("kt,nwtl->nwlk", own, seen[:, :, block], optimize=True)
        for block, own in enumerate(profiles)
    ]
    return np.concatenate(each, axis=-1)


def _score(
    features: Float[np.ndarray, "keys 2 lanes features"], pairs: int, group: int
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"], bool]:
    """Learn the noise from a third of the keys; score the others. Also: was the shift constant?"""
    shifts = features[:, 1, 0] - features[:, 0, 0]
    shift = shifts.mean(axis=0)
    # All other records count 0 and the changed one is symmetric: the middle is the noise alone.
    noise = features.mean(axis=1)
    learned = max(1, len(noise) // 3)
    train, test = (part.reshape(-1, part.shape[-1]) for part in (noise[:learned], noise[learned:]))
    covariance = train.T @ train / len(train)
    # Where there is no noise, the shift is taken for some 1e10 times as long as the noise.
    least = 1e-20 * (shift @ shift) + 1e-300
    ridge = 1e-9 * np.trace(covariance) / len(covariance) + least
    weights = np.linalg.solve(covariance + ridge * np.eye(len(covariance)), shift)
    scale = math.sqrt(np.mean((train @ weights) ** 2) + least * (weights @ weights) + 1e-300)
    middle, half = (test @ weights)[:pairs] / scale, group * (weights @ shift) / 2 / scale
    spread = float(np.sqrt(np.mean(noise**2)))
    fixed = bool(np.max(np.abs(shifts - shift)) <= 1e-6 * (np.max(np.abs(shift)) + spread))
    return middle - half, middle + half, fixed
