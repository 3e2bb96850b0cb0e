"""The last thing that a run asks: is what it found better than the start?

A comparison is a run of its own for the ledger, as calibrations are: its own gate and noise key, in the
folder `comparison` of the run directory, charged before it releases and resumed bit for bit. What it
costs is part of `plan.mu`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from blindstep.estimate.comparison import Comparison, read
from blindstep.ledger.session import Session
from blindstep.planning.plan import Plan
from blindstep.run.calibration import Where
from blindstep.run.outcome import is_coherent, share_of_the_way
from blindstep.run.result import History, Result, part_of_the_way

Points = Float[np.ndarray, "evaluations dim"]
Release = Callable[[Points, Array], Float[np.ndarray, " size"]]
# How many parts in sqrt(d) of a way of length 1 a record's loss is expected to change by.
_FELT = 2.0


def compare(
    plan: Plan,
    session: Session,
    start: Float[np.ndarray, " dim"],
    found: Result,
    release: Release,
) -> Comparison:
    """Compare the means of some rounds of what was `found` with the start.

    All of them are in the user's parameters. `release` evaluates at points and sends what the records
    say through the session's gate.
    """
    assert found.scales is not None  # a plan that compares finds its scales
    natural = found.scales.natural(found.means)
    compared = list(compared_of(plan, found.history))
    share = share_of_the_way(plan, found.history, natural[compared[0]])
    points = np.stack([start, *(part_of_the_way(start, found.means[k], share) for k in compared)])
    away = share * np.linalg.norm(natural[compared], axis=1)
    expected = float(found.scales.unit) * felt_of(plan.dim) * away
    return compare_at(plan, session, points, release, found.history, natural, expected, share)


def felt_of(dim: int) -> float:
    """By about how much a record's loss changes along a way of length 1, in natural units.

    Its slopes are about 1 long there, and it feels of a random direction of d dimensions one part in
    sqrt(d). Twice that, for it was its slopes that led there.
    """
    return min(1.0, _FELT / math.sqrt(dim))


def compare_at(
    plan: Plan,
    session: Session,
    points: Where,
    release: Callable[[Where, Array], Float[np.ndarray, " size"]],
    history: History,
    natural: Float[np.ndarray, "rounds dim"] | None,
    expected: Float[np.ndarray, " candidates"],
    share: float = 1.0,
) -> Comparison:
    """The same for a driver with a form of its own for the points: the start, then `plan.compared`.

    Slopes are trusted if they led one way; but not where each step was made of many releases, since
    noise that is averaged leads one way as well. `natural` are the means of rounds; None where they are
    too large to keep. `expected` is about by how much losses should differ, and `share` how much of the
    way from the start to the mean of a round the points are.
    """
    trusted = natural is not None and not plan.surveys and is_coherent(history, natural)
    query, rounds = plan.comparison_query, compared_of(plan, history)
    released = np.array(session.state)
    noise = float(session.gate.terms.noise_std)
    expected = np.maximum(expected, np.finfo(float).tiny)
    limits, seen = np.zeros(len(rounds)), np.zeros(len(rounds), bool)
    for number in range(plan.comparisons):
        if number >= session.position:
            released[number] = release(points, jnp.asarray(limits))
            with jax.enable_x64(True):
                session.after(jnp.asarray(released), session.gate.position, dict)
        if number == 0:
            limits, seen = query.limits(released[0], noise, expected)
    return read(query, released, limits, noise, rounds, seen, trusted, share)


def compared_of(plan: Plan, history: History) -> tuple[int, ...]:
    """The rounds that are compared with the start: of a run that was ended early the last one."""
    last = len(history.move_norm) - 1
    return tuple(min(each, last) for each in plan.compared)
