"""Private values: the mean loss at some parameters, with noise, and what it cost.

Two releases: a histogram of log2 |f| says beyond which size few losses are; then the mean of losses,
each clamped to that size. The noise on the mean is known exactly, and is part of the answer.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree
from numpy.typing import ArrayLike

from blindstep.display import Displayed
from blindstep.errors import answers_typos, positive
from blindstep.estimate.calibration import FIRST, PLACES, place
from blindstep.estimate.vectors import of_answers, together
from blindstep.ledger import fingerprints
from blindstep.ledger.budget import Privacy
from blindstep.ledger.session import Session
from blindstep.ledger.storage import Storage, check, require_room
from blindstep.losses.data_frames import arrays_of
from blindstep.losses.error_checks import telling_failures
from blindstep.losses.evaluators import evaluator
from blindstep.losses.people import People, by_person, people_of
from blindstep.losses.pytrees import Loss, ParameterSpace, count_records
from blindstep.planning.checks import check_delta
from blindstep.planning.noise import calibrated
from blindstep.planning.statement import Statement, compose_statements, statement
from blindstep.private.gate import Memory, Permit
from blindstep.private.mechanisms import Independent
from blindstep.private.noise import second_seed
from blindstep.private.schedule import Kind, Schedule
from blindstep.private.terms import Terms
from blindstep.run.calibration import CALIBRATION
from blindstep.run.progress import ends_in_one_line

Losses = Float[np.ndarray, "records some"]
# The share of mu^2 for the histogram, and the share of records that may be clamped.
_HISTOGRAM, _CLAMPED = 0.2, 0.02


@dataclass(frozen=True)
class Value(Displayed):
    """A private mean loss.

    Attributes:
        mean: the mean loss with noise.
        std: the standard deviation of that noise.
        largest: each record counts with a loss between -largest and largest.
        privacy: what it cost.
    """

    mean: float
    std: float
    largest: float
    privacy: Statement

    def __str__(self) -> str:
        return (
            f"{self.mean:.4g}, noise {self.std:.2g} (one standard deviation); losses count with at "
            f"most {self.largest:.3g}.\n{self.privacy}"
        )


@answers_typos
@ends_in_one_line
def value(
    loss: Loss,
    params: PyTree,
    data: PyTree,
    privacy: Privacy,
    *,
    largest: float | None = None,
    people: People | ArrayLike | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    ledger: str | os.PathLike[str] | None = None,
    budget: Privacy | None = None,
    seed: int | None = None,
) -> Value:
    """The mean of `loss(params, record)` over the records, privately.

        import numpy as np, blindstep as bs

        def wrong(params, record):
            return (record["x"] @ params > 0) != record["y"]

        x = np.random.default_rng(0).normal(size=(2000, 2))
        data = {"x": x, "y": x[:, 0] > 0}
        print(bs.value(wrong, np.ones(2), data, bs.Privacy(epsilon=1, delta=1e-6), largest=1))

    Args:
        loss: of parameters and one record: a JAX function, or any Python function. It need not be the
            one that was minimized: an error rate is a loss too.
        params: where to evaluate it.
        data: a pytree of arrays whose leading axis is the record.
        privacy: the budget of this value.
        largest: a public bound on |loss|, such as 1 for an error rate. Then nothing is spent to find
            one, and the noise is smaller.
        people: an identifier for each row, if people have several rows, or `People(...)`.
        checkpoint: a directory: the same call goes on after a crash, with the same value; another
            loss or `largest` is refused. It holds the noise key: keep it as secret as the data.
        ledger: a file in which runs on the same people add up what they spend.
        budget: what all runs in the ledger together may spend.
        seed: for reproduction only: not private against anyone who knows or can guess it.

    Returns:
        The value, its noise and its privacy statement.
    """
    data, space = arrays_of(data), ParameterSpace.of(params)
    loss, data, unit = by_person(loss, params, data, people_of(people))
    check_delta(privacy, count_records(data))
    (mean,), std, most, said = measure(
        lambda: losses_of(loss, params, space, data)[:, None],
        count_records(data),
        1,
        privacy,
        Storage(checkpoint, ledger, budget),
        lambda: fingerprints.of_values([(loss, params, data)], data),
        largest,
        seed,
        unit,
    )
    return Value(mean, std, most, said)


def losses_of(loss: Loss, params: PyTree, space: ParameterSpace, data: PyTree) -> np.ndarray:
    """Every record's loss; NaN where it has none. Secret.

    A callback that raises for some record ends this with `LossFailed`, which says nothing of it.
    """
    with jax.enable_x64(True):
        vector = np.asarray(space.flatten(params))
        return telling_failures(lambda: evaluator(loss, space, params, data).each(vector))


def measure(
    losses: Callable[[], Losses],
    records: int,
    number: int,
    privacy: Privacy,
    storage: Storage,
    known: Callable[[], fingerprints.Fingerprints],
    largest: float | None,
    seed: int | None,
    unit: str,
) -> tuple[list[float], float, float, Statement]:
    """Private means of several losses of every record, at the price of one value each.

    Gives the means, the standard deviation of their noise, the size that losses are clamped to and
    the statement of both releases.

    Guarantee: what cannot be stated, or is resumed with another bound or loss than it was begun with,
    is refused before either release.
    """
    bound = None if largest is None else positive("largest", largest)
    budget = {"delta": privacy.delta, "mu": privacy.mu}
    plan = {"values": number, "records": records, "largest": bound, "privacy": budget}
    share = _HISTOGRAM if bound is None else 0.0
    sizes = [_terms(records, PLACES, 1.0, privacy, share)] if bound is None else []
    terms = _terms(records, number, math.sqrt(number), privacy, 1.0 - share)
    require_room(storage, privacy.mu)
    for kept in (storage.part(CALIBRATION), storage):
        if kept.directory is not None:
            check(os.fspath(kept.directory), plan, resuming=True)

    def said(seeded: bool) -> Statement:
        each = (
            statement(part, privacy.delta, seeded=seeded, unit=unit) for part in (*sizes, terms)
        )
        released = "a noisy histogram of the sizes of losses, if there was no public bound, and"
        return replace(compose_statements(list(each)), released=f"{released} noisy means")

    said(seed is not None)
    with jax.enable_x64(True), np.errstate(all="ignore"):
        if bound is None:
            kept, seeded = storage.part(CALIBRATION), second_seed(seed)
            with Session(
                sizes[0], plan, jnp.zeros(PLACES), kept, known, seed=seeded, unit=unit
            ) as run:
                counts = _release(run, lambda: np.max(np.abs(losses()), axis=1), _counted)
            bound = _largest(counts, float(sizes[0].noise_std))
        most = bound
        with Session(terms, plan, jnp.zeros(number), storage, known, seed=seed, unit=unit) as run:
            means = _release(run, lambda: losses() / most, _clamped)
            whole = said(run.gate.seeded)
    return [most * float(mean) for mean in means], most * float(terms.noise_std), most, whole


def _terms(records: int, size: int, clip: float, privacy: Privacy, share: float) -> Terms:
    """The terms of one release of all records, for a share of mu^2."""
    schedule, mu = Schedule(records, records, records, 1, 1), privacy.mu * math.sqrt(share)
    return calibrated(schedule, Independent(1), size, clip, clip, mu, privacy.neighbours)


def _counted(sizes: Float[Array, " some"]) -> Float[Array, "some places"]:
    """A 1 at the place of each size; NaN, which counts 0, for none."""
    return jnp.where(jnp.isfinite(sizes)[:, None], place(sizes), jnp.nan)


def _clamped(losses: Float[Array, "some number"]) -> Float[Array, "some number"]:
    """Losses between -1 and 1. One that is not finite makes its record count 0."""
    return jnp.where(jnp.isfinite(losses), jnp.clip(losses, -1.0, 1.0), jnp.nan)


def _release(
    session: Session,
    answers: Callable[[], np.ndarray],
    vectors: Callable[[Array], Array],
) -> Float[np.ndarray, " size"]:
    """The mean of the records' vectors, through the gate; what was released before comes again."""
    if session.finished:
        return np.asarray(session.state)
    saved = session.saved.get("answers")
    given = np.asarray(answers() if saved is None else saved, np.float64)
    session.save(session.state, {"answers": given})

    def program(permit: Permit, memory: Memory) -> tuple[Memory, Array]:
        return _through(permit, memory, jnp.asarray(given), vectors)

    released = np.asarray(session.gate.through(program, answers=given.ravel()))
    session.after(jnp.asarray(released), 1, dict)
    return released


@eqx.filter_jit
def _through(
    permit: Permit, memory: Memory, answers: Array, vectors: Callable[[Array], Array]
) -> tuple[Memory, Array]:
    size = together(permit.terms, Kind.GRAD, math.prod(answers.shape[1:]))
    return permit.release(memory, Kind.GRAD, of_answers(answers, vectors, size))


def _largest(counts: Float[np.ndarray, " places"], noise: float) -> float:
    """The size beyond which few losses are: the end of the last place with more than a few records.

    A place counts if it holds more than noise explains, and what is beyond it is little.
    """
    above = np.flatnonzero(counts > max(_CLAMPED, 4.0 * noise))
    last = int(above[-1]) if above.size else int(np.argmax(counts))
    return 2.0 ** (last + 1 + FIRST)
