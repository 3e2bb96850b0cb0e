"""An audit of a plan: a lower bound on mu, measured through the real driver, against what is claimed.

The claim comes from the plan's budget and its own statement; the measurement comes from what the
code does. Exact checks complement the statistics. `docs/audit.md` says how to read an audit and what
it cannot see.

Runs that are too long to be repeated are audited with a canary in every block: a worst-case record
whose value, z = +1 or z = -1, is decided by a coin of its own. The run is made once. From the
releases of each block its coin is guessed, and the correct guesses are counted
(`audit_bounds.mu_from_guesses` says why that is sound).
"""

from __future__ import annotations

import hashlib
import math
import os
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from blindstep.errors import InvalidArgument, count, probability
from blindstep.insight import audit_bounds as bounds
from blindstep.insight.audit_bounds import Trials, keys_needed, measured_costs, run_trials
from blindstep.insight.audit_scene import Scene
from blindstep.insight.audit_secret import (
    expected_scores,
    run_secret_trials,
    secret_keys_needed,
    secret_passes,
)
from blindstep.insight.membership import Canaries, Membership
from blindstep.insight.membership import attack as membership_attack
from blindstep.planning.plan import Plan
from blindstep.private import accounting
from blindstep.private.mechanisms import matrix_of
from blindstep.private.noise import fresh_keys
from blindstep.run.result import Result

ATTACKS = ("many-runs", "one-run")
_MOST_STEPS = 4096
# Rows of the schedule that are counted, at most, and releases that they are counted in.
_ROWS, _RELEASES = 5 * 10**6, 2 * 10**5


@dataclass(frozen=True)
class Audit:
    """What an audit found.

    Attributes:
        attack: "many-runs" or "one-run".
        method: of the plan.
        claimed_mu: what the plan says it spends, and never more than its budget leaves it.
        claimed_epsilon: of claimed_mu at delta, by the library's accounting.
        delta: where epsilon is quoted.
        lower_bound_mu: what was measured: the true mu is at least this, with `confidence`.
        lower_bound_epsilon: of lower_bound_mu at delta, by the audit's own arithmetic.
        expected_lower_bound_mu: what a correct implementation gives with as many trials.
        confidence: that lower_bound_mu is not above the true mu of a correct program.
        pairs: trials that were counted: pairs of transcripts, or canaries of one run.
        passes: times a record takes part; the bound of one pass was multiplied by their root.
        group: records that count as changed at once; the bound was divided by it.
        checks: exact checks, by name: whether each holds.
        verdict: "holds" or "BROKEN".
        scores: of the trials in one world, in standard deviations.
        neighbour_scores: in the other.
        membership: what an attack on the released parameters got, where canaries were given.
    """

    attack: str
    method: str
    claimed_mu: float
    claimed_epsilon: float
    delta: float
    lower_bound_mu: float
    lower_bound_epsilon: float
    expected_lower_bound_mu: float
    confidence: float
    pairs: int
    passes: int
    group: int
    checks: dict[str, bool]
    scores: Float[np.ndarray, " n"]
    neighbour_scores: Float[np.ndarray, " m"]
    membership: Membership | None = None

    @property
    def holds(self) -> bool:
        """Whether nothing speaks against the claim."""
        attacked = self.membership is None or self.membership.holds
        return self.lower_bound_mu <= self.claimed_mu and all(self.checks.values()) and attacked

    @property
    def verdict(self) -> str:
        """In one word."""
        return "holds" if self.holds else "BROKEN"

    @property
    def reason(self) -> str:
        """In one sentence."""
        failed = [name for name, good in self.checks.items() if not good]
        if self.lower_bound_mu > self.claimed_mu:
            failed.insert(0, f"mu is at least {self.lower_bound_mu:.4g}, above the claim")
        if self.membership is not None and not self.membership.holds:
            failed.insert(0, f"{self.membership}".rstrip("."))
        if failed:
            return "The claim is BROKEN: " + "; not so: ".join(failed) + "."
        return (
            f"Nothing speaks against the claim; the attack reached {self.lower_bound_mu:.4g} of "
            f"{self.claimed_mu:.4g} (a correct program gives about "
            f"{self.expected_lower_bound_mu:.4g} with as many trials)."
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything but the scores, ready for JSON."""
        left_out = ("scores", "neighbour_scores", "membership")
        fields = {k: getattr(self, k) for k in self.__dataclass_fields__ if k not in left_out}
        if self.membership is not None:
            fields["membership"] = self.membership.to_dict()
        return {**fields, "verdict": self.verdict, "reason": self.reason}

    def __str__(self) -> str:
        attacked = "" if self.membership is None or not self.holds else f"\n{self.membership}"
        return (
            f"claimed mu {self.claimed_mu:.6g} (epsilon {self.claimed_epsilon:.6g} at delta "
            f"{self.delta:g}); measured at least {self.lower_bound_mu:.6g} (epsilon "
            f"{self.lower_bound_epsilon:.6g}) with confidence {self.confidence:g}: {self.verdict}.\n"
            f"{self.reason}{attacked}"
        )


def audit(
    plan: Plan | Result,
    *,
    attack: str = "many-runs",
    pairs: int | None = None,
    confidence: float = 0.999,
    seed: int | None = None,
    canaries: Canaries | None = None,
) -> Audit:
    """Measure a lower bound on the privacy loss of `plan`, and hold it against what is claimed.

        plan = bs.plan(bs.Auto(evaluations=2**14), dim=3, records=1000, privacy=bs.Privacy(mu=1))
        print(bs.audit(plan, pairs=2000))

    Either the block with the changed record, and up to three others, run through the real driver
    under thousands of noise keys ("many-runs"); or one pass of the plan runs once with a canary in
    each block ("one-run"). The loss is a worst-case one. So this is about the plan and the code; it
    needs neither your loss nor your data, and spends nothing.

    Of a result it is that result's plan, and `canaries` that took part in the run show beside it what
    an attack on the released parameters gets (`blindstep.insight.membership`).

    Args:
        plan: the plan, or the result of a run.
        attack: "many-runs" or "one-run".
        pairs: trials to count: 40,000 pairs of transcripts, or at most 5,000 canaries, by default.
            Plans with many steps in many dimensions get fewer; the result says how many.
        confidence: the probability that the bound is right.
        seed: for reproduction; by default the noise keys come from the operating system.
        canaries: made-up records of this run, and which of them took part.
    """
    membership = None
    if not isinstance(plan, Plan):
        if not isinstance(plan, Result):
            raise InvalidArgument(
                f"audit a plan or the result of a run, got {type(plan).__name__}."
            )
        if canaries is not None:
            membership = membership_attack(plan, canaries, probability("confidence", confidence))
        plan = plan.plan
    elif canaries is not None:
        raise InvalidArgument("canaries are looked for in a result: give the result of their run.")
    if attack not in ATTACKS:
        raise InvalidArgument(f"attack must be one of {', '.join(ATTACKS)}, got {attack!r}.")
    confidence = probability("confidence", confidence)
    if plan.period > _MOST_STEPS:
        raise InvalidArgument(
            f"a block of {plan.period} releases is longer than an audit can take "
            f"({_MOST_STEPS}): audit the same plan with a shorter period."
        )
    pairs = count("pairs", (40_000 if attack == "many-runs" else 5_000) if pairs is None else pairs)
    with jax.enable_x64(True):
        scene = Scene(plan, fresh_keys(seed))
        claimed = claimed_mu(scene)
        rng = np.random.default_rng(np.frombuffer(_bytes(16, seed, "audit choices"), np.uint32))
        secret = scene.terms.schedule.secret
        if secret and attack != "many-runs":
            raise InvalidArgument(
                "one run of secret batches has no canary in a place that is known: audit it with "
                "attack='many-runs'."
            )
        if secret:
            keys = _noise_keys(secret_keys_needed(scene, pairs), seed)
            trials = run_secret_trials(scene, claimed, pairs, keys)
        elif attack == "many-runs":
            keys = _noise_keys(keys_needed(plan, pairs), seed)
            trials = run_trials(scene, claimed, pairs, rng, keys)
        else:
            trials = run_with_canaries(scene, pairs, rng, _noise_keys(1, seed)[0])
        epsilon = accounting.epsilon(claimed, plan.delta, scene.terms.slack(), plan.secrecy)
        checks = {
            **trials.checks,
            "epsilon is that of mu": epsilon >= (1 - 1e-7) * bounds.epsilon_at(claimed, plan.delta)
            and plan.epsilon >= (1 - 1e-6) * bounds.epsilon_at(plan.privacy.mu, plan.delta),
            "no record answers more often than the passes say": rows_are_disjoint(scene),
        }
    worlds = trials.scores, trials.neighbour_scores
    # What one trial attacks is one pass, and all records of the group.
    factor = math.sqrt(plan.passes) / trials.group
    if attack == "many-runs":
        number = len(trials.scores)
        lower = bounds.mu_lower_bound(*worlds, confidence=confidence)
        expected = bounds.expected_lower_bound(claimed / factor, number, confidence)
        if secret:
            usual = expected_scores(scene, trials.group, number, rng)
            expected = bounds.mu_lower_bound(*usual, confidence=confidence)
    else:
        number = sum(map(len, worlds))
        right = np.sum(~(trials.scores > 0)) + np.sum(trials.neighbour_scores > 0)
        lower = bounds.mu_from_guesses(int(right), number, confidence)
        usual = round(number * (1 + math.erf(claimed / factor / math.sqrt(8))) / 2)
        expected = bounds.mu_from_guesses(usual, number, confidence)
    return Audit(
        attack=attack,
        method=plan.method,
        claimed_mu=claimed,
        claimed_epsilon=epsilon,
        delta=plan.delta,
        lower_bound_mu=factor * lower,
        lower_bound_epsilon=bounds.epsilon_at(factor * lower, plan.delta),
        expected_lower_bound_mu=factor * expected,
        confidence=confidence,
        pairs=number,
        passes=plan.passes,
        group=trials.group,
        checks=checks,
        scores=trials.scores,
        neighbour_scores=trials.neighbour_scores,
        membership=membership,
    )


def claimed_mu(scene: Scene) -> float:
    """What the plan claims to spend: by its own terms, and by the budget that was asked for.

    The noise is calibrated so that all of mu is spent. A plan by the paper's corollary spends less,
    because it multiplies the largest sensitivity by the largest column norm, wherever they occur.
    Terms whose mu rose while their noise fell are held to the budget.
    """
    plan, terms, share = scene.plan, scene.terms, 1.0
    if plan.by_corollary:
        sensitivities = terms.sensitivities()
        columns = np.linalg.norm(matrix_of(terms.mechanism), axis=0)
        share = float(np.max(sensitivities * columns) / (sensitivities.max() * columns.max()))
    return min(plan.mu, plan.privacy.mu * share)


def rows_are_disjoint(scene: Scene) -> bool:
    """Count the rows that the gate lets answer: once in a pass, `passes` times in the run.

    Of long runs, as many blocks as have five million rows or 200,000 releases.
    """
    schedule = scene.terms.schedule
    if schedule.secret:  # each record has one step of a pass
        return all(len(np.unique(rows)) == len(rows) for rows in secret_passes(scene))
    most = min(_ROWS // schedule.block_size, _RELEASES // schedule.period)
    blocks = scene.blocks(0, max(1, min(schedule.blocks, most)))
    once = np.unique(blocks.rows).size == blocks.rows.size
    often = np.bincount(blocks.rows.ravel() % scene.plan.records).max()
    return bool(once and often <= schedule.passes)


def _bytes(number: int, seed: int | None, name: str) -> bytes:
    if seed is None:
        return os.urandom(number)
    return hashlib.shake_256(f"blindstep {name} {seed}".encode()).digest(number)


def _noise_keys(number: int, seed: int | None) -> np.ndarray:
    """Keys for the noise: 256 bits each."""
    raw = _bytes(32 * number, seed, "audit noise")
    return np.frombuffer(raw, "<u4").astype(np.uint32).reshape(number, 8)


# Blocks handled at once, within this many numbers.
_NUMBERS = 2**25


def run_with_canaries(scene: Scene, most: int, rng: np.random.Generator, key: np.ndarray) -> Trials:
    """One pass of the plan, at most `most` of its blocks, with a canary in each.

    Scores of the canaries at z = -1, and of those at z = +1: the guess is +1 above 0. A canary
    answers in the release where that costs most. The run is also made with every coin turned, under
    the same noise: the difference is where each canary pushes, which anyone can work out who knows
    the public key.
    """
    schedule, terms = scene.terms.schedule, scene.terms
    number = min(most, schedule.blocks_per_pass, schedule.blocks)
    # Parts of one size, so that one program serves all of them; what is left over is left out.
    parts = -(-number * (2 * schedule.period * terms.size + schedule.block_size) // _NUMBERS)
    size = max(1, number // parts)
    every = scene.blocks(0, number)
    worst = int(np.argmax(measured_costs(scene, every.some(slice(size)), key)))
    scores, coins, checks = [], [], {}
    for start in range(0, number - size + 1, size):
        blocks = every.some(slice(start, start + size))
        coin = rng.random(size) < 0.5
        signs = np.where(coin, 1.0, -1.0)
        releases = scene.watch(blocks, scene.batch(blocks, worst)[:, 0], key[None], z=signs)[0]
        push = (releases[0] - releases[1]) * signs[:, None, None]
        norms = np.linalg.norm(push, axis=(1, 2)) * float(terms.noise_std)
        scores.append(np.sum(releases[0] * push, axis=(1, 2)) / np.where(norms > 0, norms, 1.0))
        coins.append(coin)
        for name, good in scene.exact_checks(releases).items():
            checks[name] = checks.get(name, True) and good
    scored, plus = np.concatenate(scores), np.concatenate(coins)
    return Trials(scored[~plus], scored[plus], 1, checks)
