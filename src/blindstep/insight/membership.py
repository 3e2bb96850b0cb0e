"""A membership attack on what a run handed over: many canaries, one run, a likelihood ratio.

A canary is a made-up record. A coin decides whether it takes part, and the attack guesses the coin from
the released parameters alone: from the canary's loss at the mean of every round. On a third of the
canaries it learns how these losses differ between the two sides of the coin, and how they scatter;
the likelihood ratio of the two normal distributions is its score. The other canaries are counted.

What it proves is a lower bound on mu: "an attack got this far". It is no upper bound. Ordinary canaries
show much less than the claim, which is for the worst record and for everything that was released.
Worst-case canaries (`Canaries.worst_case`) come close to it, and a bound above it is a fault.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree
from numpy.typing import ArrayLike

from blindstep.errors import InvalidArgument, count
from blindstep.insight import audit_bounds as bounds
from blindstep.losses.pytrees import Loss, count_records
from blindstep.run.result import Result

# Canaries to learn from, for each round whose loss is looked at.
_LEARNED_FROM = 20
_FEWEST = 60
# A slope so steep that every clip norm cuts it.
_STEEP = 1e6


@dataclass(frozen=True)
class Canaries:
    """Made-up records that a coin put among the people, or left out, to be looked for afterwards.

        canaries, method = bs.Canaries.worst_case(200), bs.Auto(estimate="gradient")
        result = bs.minimize(
            canaries.loss, np.zeros(200), canaries.data, bs.Privacy(mu=3, delta=1e-4), method=method
        )
        print(bs.audit(result, canaries=canaries, pairs=200))

    Canaries of your own go among your records: those whose coin says so, and for each other one
    something else that does not depend on the coins. Nothing about a canary may be private, since what
    the attack finds is computed from canaries and coins without noise.

    Attributes:
        loss: the loss of the run.
        records: one record for each canary, as the loss takes them, along a leading axis.
        took_part: for each canary, whether it was among the records.
        copies: how many equal records of the run were one canary; the bound is divided by it.
    """

    loss: Loss
    records: PyTree
    took_part: Bool[np.ndarray, " canaries"] | ArrayLike
    copies: int = 1

    def __post_init__(self) -> None:
        took_part, number = np.asarray(self.took_part), count_records(self.records)
        if took_part.dtype != bool or took_part.shape != (number,):
            raise InvalidArgument(
                f"took_part must say True or False for each of the {number} canaries, got an array of "
                f"shape {took_part.shape} and dtype {took_part.dtype}."
            )
        if min(took_part.sum(), number - took_part.sum()) < _FEWEST:
            raise InvalidArgument(
                f"{took_part.sum()} of {number} canaries took part: an attack needs at least {_FEWEST} "
                "that did and as many that did not."
            )
        count("copies", self.copies)

    @classmethod
    def worst_case(cls, number: int, seed: int | None = None) -> Canaries:
        """Canaries that no run could hide better than it claims: for `number` parameters from 0.

        Each pulls at a parameter of its own, harder than any clip norm, forwards or backwards as its
        coin says. `data` are the records of such a run: the canaries and nobody else.
        """
        number = count("number", number)
        forwards = np.random.default_rng(seed).random(number) < 0.5
        every = np.arange(number, dtype=np.int32)
        return cls(_pull, {"which": every, "way": np.ones(number)}, forwards)

    @property
    def data(self) -> PyTree:
        """The records of a run on worst-case canaries alone."""
        if self.loss is not _pull:
            raise InvalidArgument(
                "your own canaries go among your own records: there is no `data`."
            )
        return {**self.records, "way": np.where(self.took_part, 1.0, -1.0)}


def _pull(params: Array, record: dict[str, Array]) -> Array:
    return -_STEEP * record["way"] * params[record["which"]]


@dataclass(frozen=True)
class Membership:
    """What an attack on the released parameters got.

    Attributes:
        claimed_mu: what the run says it spent.
        lower_bound_mu: the true mu is at least this, with `confidence`, as far as canaries fall to
            the attack independently of one another.
        estimated_mu: the same without a margin for chance: what the attack got in the middle.
        confidence: that lower_bound_mu is not above the truth.
        canaries: canaries that were counted.
        caught: the share of canaries that took part and were said to.
        false_alarms: the share of those that did not, and were said to.
    """

    claimed_mu: float
    lower_bound_mu: float
    estimated_mu: float
    confidence: float
    canaries: int
    caught: float
    false_alarms: float

    @property
    def holds(self) -> bool:
        """Whether the attack got no further than is claimed."""
        return self.lower_bound_mu <= self.claimed_mu

    def to_dict(self) -> dict[str, Any]:
        """Every number, ready for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        beyond = "" if self.holds else ", ABOVE THE CLAIM"
        return (
            f"An attack on the released parameters, with {self.canaries:,} canaries in this run, "
            f"proves mu of at least {self.lower_bound_mu:.4g} of {self.claimed_mu:.4g}{beyond}: "
            f"it named {self.caught:.0%} of those that took part and {self.false_alarms:.0%} of the "
            "others. Another attack may get further, up to the claim."
        )


def attack(result: Result, canaries: Canaries, confidence: float = 0.999) -> Membership:
    """Guess from the released parameters which canaries took part.

    The guarantee bounds every canary's rates of hits and false alarms, whatever the others did; the
    mean of such rates obeys the same bound, because trade-off curves are convex. Only the margin for
    chance takes the guesses as independent: they are where canaries pull in orthogonal directions and
    the noise of these is independent, and nearly so among many ordinary records.
    """
    # Terms that state more than the budget, because they have less noise, are held to the budget.
    claimed = result.privacy.mu * min(1.0, result.plan.privacy.mu / result.plan.mu)
    seen = losses_seen(result.round_means, canaries)
    return from_losses(seen, canaries, claimed, confidence)


def from_losses(
    seen: Float[np.ndarray, "canaries rounds"],
    canaries: Canaries,
    claimed: float,
    confidence: float,
) -> Membership:
    """What an attack gets that saw these losses of the canaries, of a run that claims this mu."""
    took_part = np.asarray(canaries.took_part)
    learned = np.arange(len(seen)) % 3 == 0
    score = _likelihood_ratio(seen[learned], took_part[learned])
    scores, inside = score(seen[~learned]), took_part[~learned]
    without, within = scores[~inside], scores[inside]
    apart = float(within.mean() - without.mean())
    scatter = float(np.sqrt((within.var() + without.var()) / 2))
    lower = bounds.mu_lower_bound(without, within, confidence=confidence)
    caught, false = float(np.mean(within > 0)), float(np.mean(without > 0))
    return Membership(
        claimed_mu=claimed,
        lower_bound_mu=lower / canaries.copies,
        estimated_mu=max(0.0, apart / scatter if scatter > 0 else 0.0) / canaries.copies,
        confidence=confidence,
        canaries=len(scores),
        caught=caught,
        false_alarms=false,
    )


def losses_seen(
    means: Sequence[PyTree], canaries: Canaries
) -> Float[np.ndarray, "canaries rounds"]:
    """The loss of each canary at the means of as many rounds as there are canaries to learn from."""
    number = len(np.asarray(canaries.took_part))
    most = max(1, number // 3 // _LEARNED_FROM)
    some = np.unique(np.linspace(0, len(means) - 1, min(most, len(means))).round().astype(int))
    records = jax.tree.map(np.asarray, canaries.records)
    with jax.enable_x64(True):
        evaluate = _evaluator(canaries.loss, means[0], records)
        return np.stack([evaluate(means[place]) for place in some], axis=1)


def _evaluator(loss: Loss, params: PyTree, records: PyTree) -> Callable[[PyTree], Any]:
    """The losses of all canaries at some parameters: compiled, or one after the other in Python."""
    one = jax.tree.map(lambda leaf: leaf[0], records)
    try:
        jax.eval_shape(loss, params, one)
    except Exception:  # a loss for a host: canaries are public, so what it raises may be seen
        number = count_records(records)
        rows = [jax.tree.map(lambda leaf, row=row: leaf[row], records) for row in range(number)]
        return lambda point: np.array([float(np.asarray(loss(point, row))) for row in rows])
    compiled = jax.jit(jax.vmap(loss, in_axes=(None, 0)))
    return lambda point: np.asarray(compiled(jax.tree.map(jnp.asarray, point), records), np.float64)


def _likelihood_ratio(
    seen: Float[np.ndarray, "canaries rounds"], took_part: Bool[np.ndarray, " canaries"]
) -> Callable[[Float[np.ndarray, "some rounds"]], Float[np.ndarray, " some"]]:
    """The log-likelihood ratio of two normal distributions of equal covariance, learned from these."""
    middles = [seen[took_part == side].mean(axis=0) for side in (False, True)]
    around = np.concatenate([seen[took_part == side] - middles[side] for side in (False, True)])
    covariance = around.T @ around / len(around)
    ridge = 1e-9 * np.trace(covariance) / len(covariance) + 1e-300
    weights = np.linalg.solve(covariance + ridge * np.eye(len(covariance)), middles[1] - middles[0])
    middle = (middles[0] + middles[1]) / 2
    return lambda these: (these - middle) @ weights
