"""The last thing that a run asks: is what it found better than the start?

A comparison is a run of its own for the ledger, as calibrations are: its own gate and noise key, in the
folder `comparison` of the run directory, charged before it releases and resumed bit for bit. What it
costs is part of `plan.mu`.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from blindstep.estimate.comparison import Comparison, read
from blindstep.ledger.session import Session
from blindstep.planning.plan import Plan
from blindstep.run.calibration import Where
from blindstep.run.outcome import is_coherent, stood_out
from blindstep.run.result import History, Result

Points = Float[np.ndarray, "evaluations dim"]
Release = Callable[[Points, Array], Float[np.ndarray, " size"]]


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
    points = np.concatenate([start[None], found.means[list(plan.compared)]])
    # A record's slopes are about 1 long in natural units.
    away = np.linalg.norm(natural[list(plan.compared)], axis=1)
    expected = float(found.scales.unit) * away
    return compare_at(plan, session, points, release, found.history, natural, expected)


def compare_at(
    plan: Plan,
    session: Session,
    points: Where,
    release: Callable[[Where, Array], Float[np.ndarray, " size"]],
    history: History,
    natural: Float[np.ndarray, "rounds dim"] | None,
    expected: Float[np.ndarray, " candidates"],
) -> Comparison:
    """The same for a driver with a form of its own for the points: the start, then `plan.compared`.

    Slopes are trusted if they led one way, and limits are wider where slopes neither did so nor stood
    out from the noise. `natural` are the means of rounds; None where they are too large to keep.
    `expected` is about by how much losses should differ.
    """
    trusted = natural is not None and is_coherent(history, natural)
    doubted = not trusted and not stood_out(plan, history)
    query, rounds = plan.comparison_query, plan.compared
    released = np.array(session.state)
    noise = float(session.gate.terms.noise_std)
    expected = np.maximum(expected, np.finfo(float).tiny)
    limits = np.zeros(len(rounds))
    for number in range(plan.comparisons):
        if number >= session.position:
            released[number] = release(points, jnp.asarray(limits))
            with jax.enable_x64(True):
                session.after(jnp.asarray(released), session.gate.position, dict)
        if number == 0:
            limits = query.limits(released[0], noise, expected, doubted)
    return read(query, released, limits, noise, rounds, trusted)
