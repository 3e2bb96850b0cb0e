"""The gate: record vectors in, one noisy vector out, charged before it is released.

For a block of T releases, v_i is record i's vector, clipped to norm `clip`; m_t is the sum over batch t
(of a window: over whoever answered), divided by a public number; C is the mechanism's matrix. The gate
releases

    y_t = gamma (rint((C m)_t / gamma) + z_t),     z_t discrete Gaussian, gamma = noise_std / S

and nothing else, with S = `noise.STD`. Sums are whole numbers, snapping and noise live on one lattice
of width gamma, so every release is exact: its last bits tell nothing. `terms` says what it costs.
`Permit.release` is the one way to make a release.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int, UInt32

from blindstep.errors import HorizonExceeded, InvalidArgument
from blindstep.private.clip import clip, unit_of
from blindstep.private.mechanisms import Place, State, Vector
from blindstep.private.noise import STD, Keys, Uncopied, lattice_noise
from blindstep.private.schedule import Kind
from blindstep.private.terms import Terms

Out = TypeVar("Out")
Rows = Int[Array, " some"]
Vectors = Float[Array, "some size"]


class Contributions(NamedTuple):
    """How the gate gets the vectors of a batch, some records at a time.

    All privacy rests on one premise about `of`: a record's vector depends on that record and on public
    values alone. JAX gives an array's last row for an index past its end, so that one record would
    count many times. Therefore say how many rows or answers there are, and the gate compares.
    """

    batch_size: int  # number of records evaluated per call: it changes no bit
    of: Callable[[Rows, Rows], Vectors]  # from row numbers in the data, and places in the batch
    rows: int | None = None  # of the data, if `of` takes records by their row numbers
    answers: int | None = None  # given, if `of` takes them by their places in the batch


def number_of_rows(data: Any) -> int | None:
    """The rows that all arrays of `data` have; None without an array."""
    return min((leaf.shape[0] for leaf in jax.tree.leaves(data)), default=None)


@runtime_checkable
class Port(Protocol):
    """Where releases are charged before they are made: a ledger, seen from the gate."""

    def charge(self, first: int, count: int, answers: np.ndarray | None) -> None:
        """Charge releases first .. first + count - 1, durably, before returning; raise to refuse.

        `answers` are what the releases will be made from, where they cannot be computed again.
        """


class Memory(Uncopied, eqx.Module):
    """Secret: where a run stands, and what C remembers of the block's increments without noise."""

    position: Place
    buffers: State


class Permit(Uncopied, eqx.Module):
    """Secret: the right to make a range of releases, each once, in order; they have been charged.

    The only source of noise inside a compiled program. Releases outside its range, or of another kind
    than the schedule's, come out as NaN (outside of a program they raise). A program owes one thing: it
    hands each memory on to one release, for two from one would share their noise.
    """

    terms: Terms
    key: UInt32[Array, "8"]
    first: Place
    stop: Place
    grad_rows: Int[Array | np.ndarray, "grads first_batch"]
    diff_rows: Int[Array | np.ndarray, "diffs diff_batch"]
    held: Int[Array | np.ndarray, " secret"]  # of secret batches: how many places hold a record
    table: int = eqx.field(static=True)  # number of rows that the row numbers point into
    # Noise drawn ahead: the number of the first release that it is for, and one draw for each.
    stock: tuple[Place, Float[Array, "count size"]] | None = None

    def release(
        self, memory: Memory, kind: Kind, contributions: Contributions
    ) -> tuple[Memory, Vector]:
        """Make the next release: clip, mean, C, snap, noise. Gives y and the memory after it.

        Guarantee: all releases of a run together are `terms.mu()`-Gaussian-DP for a change of one
        record (up to `terms.secrecy()`, where batches are secret), if the premise of `Contributions`
        holds. Operations are functions of shapes, and of the size of a secret batch. Data or answers
        without a row for each record are refused. In a window up to `MOST_IN_A_WINDOW` answers are one
        batch; the caller owes it that nobody gives two in a pass.
        """
        terms, position = self.terms, memory.position
        allowed = self._allowed(position, kind)
        rows = self._rows(position, kind, contributions.answers)
        if contributions.rows is not None and contributions.rows < self.table:
            raise InvalidArgument(
                f"data of {contributions.rows} rows for {self.table} records: give a row for each."
            )
        if contributions.answers not in (None, len(rows)):
            raise InvalidArgument(
                f"{contributions.answers} answers for a batch of {len(rows)} records: give all."
            )
        held = len(rows)
        if terms.schedule.secret:  # the first few places alone
            held = jnp.asarray(self.held)[position - self.first]
        increment = self._mean(rows, held, kind, contributions)
        place = position % terms.schedule.period
        fresh = terms.mechanism.init(terms.size)
        buffers, total = terms.mechanism.next(
            jnp.where(place == 0, fresh, memory.buffers), increment, place
        )
        width = terms.noise_std / STD
        y = width * (jnp.rint(total / width) + self._noise(position))
        # Nor may what was not allowed enter a later release.
        buffers, y = (jnp.where(allowed, each, jnp.nan) for each in (buffers, y))
        return Memory(position + 1, buffers), y

    def drawn(self, memory: Memory, count: int) -> Permit:
        """The same permit with the noise of the next `count` releases drawn at once, for speed."""
        numbers = memory.position + jnp.arange(count, dtype=memory.position.dtype)
        draws = lattice_noise(self.key, numbers, self.terms.size)
        return replace(self, stock=(memory.position, draws))

    def alone(self) -> tuple[Int[np.ndarray, " rows"], Permit]:
        """All rows of this permit, and the permit for data that hold just these rows, in this order."""
        grads, diffs = np.asarray(self.grad_rows), np.asarray(self.diff_rows)
        rows = np.concatenate([grads.ravel(), diffs.ravel()])
        first = np.arange(grads.size).reshape(grads.shape)
        later = np.arange(grads.size, rows.size).reshape(diffs.shape)
        return rows, replace(self, grad_rows=first, diff_rows=later, table=len(rows))

    def _allowed(self, position: Place, kind: Kind) -> Any:
        place = position % self.terms.schedule.period
        within = (position >= self.first) & (position < self.stop)
        allowed = within & ((place == 0) == (kind is Kind.GRAD))
        if not isinstance(allowed, Tracer) and not bool(allowed):
            raise HorizonExceeded(
                f"release {int(position)} as a {kind.name} is not permitted: this permit is for "
                f"releases {int(self.first)} .. {int(self.stop) - 1}, in order, each of its kind."
            )
        return allowed

    def _rows(self, position: Place, kind: Kind, answers: int | None) -> Int[Array, " batch"]:
        period, most = self.terms.schedule.period, self.terms.schedule.most_of(kind)
        if self.terms.schedule.windows:
            if answers is None or answers > most:
                raise InvalidArgument(
                    f"{answers} answers in a window: it takes what came from outside, up to {most}."
                )
            return jnp.arange(answers)
        grads = [-(-number // period) for number in (position, self.first)]
        if kind is Kind.GRAD:
            return jnp.asarray(self.grad_rows)[grads[0] - grads[1]]
        return jnp.asarray(self.diff_rows)[position - grads[0] - (self.first - grads[1])]

    def _noise(self, position: Place) -> Vector:
        """The draw of this release; NaN, never another's, from a stock that does not hold it."""
        if self.stock is None:
            return lattice_noise(self.key, position, self.terms.size)
        first, draws = self.stock
        place = position - first
        held = (place >= 0) & (place < len(draws))
        return jnp.where(held, draws[jnp.clip(place, 0, len(draws) - 1)], jnp.nan)

    def _mean(self, rows: Rows, held: Any, kind: Kind, contributions: Contributions) -> Vector:
        """The sum of the clipped vectors of `held` records, exact in whole units, by the divisor."""
        terms, batch = self.terms, self.terms.schedule.most_of(kind)
        bound, some = terms.clip_of(kind), contributions.batch_size

        def add(number: int | Place, total: Array) -> Array:
            places = number * some + jnp.arange(some)
            # Past the end the last record is asked again, and does not count.
            inside = jnp.clip(places, 0, jnp.maximum(held - 1, 0))
            vectors = contributions.of(rows[inside], inside)
            if vectors.shape != (some, terms.size):
                raise InvalidArgument(
                    f"records gave vectors of shape {vectors.shape}, the gate takes "
                    f"{(some, terms.size)}: one for each record."
                )
            counted = jnp.where((places < held)[:, None], clip(vectors, bound, batch), 0.0)
            return total + jnp.sum(counted, axis=0)

        total = jax.lax.fori_loop(0, -(-held // some), add, jnp.zeros(terms.size))
        return total * (unit_of(bound, batch) / terms.schedule.divisor_of(kind))


class Gate(Uncopied):
    """The one object between records and the world: rows, charge, noise and release in one step.

    `terms`, the `public` key, whether a user's seed made the keys (`seeded`) and the number of releases
    made (`position`) are public.
    """

    def __init__(self, terms: Terms, keys: Keys, port: Port, memory: Memory | None = None) -> None:
        """Begin before the first release, or where the memory of a checkpoint stands."""
        self.terms, self.public, self.seeded = terms, keys.public, keys.seeded
        self._key, self._port = keys.noise, port
        self._memory = memory if memory is not None else self.first_memory(terms)
        self.position = int(self._memory.position)
        self._order: tuple[int, Any] = (-1, None)
        self._free = threading.Lock()

    @staticmethod
    def first_memory(terms: Terms, position: int = 0) -> Memory:
        """The memory before a block whose first release has this number."""
        with jax.enable_x64(True):
            return Memory(jnp.asarray(position, jnp.int32), terms.mechanism.init(terms.size))

    @property
    def memory(self) -> Memory:
        """Secret: for the checkpoint alone."""
        return self._memory

    def rows(self, release: int) -> Int[np.ndarray, " batch"]:
        """The records that answer in a release, in their order.

        Who is in a secret batch, and how many are, is for whoever evaluates the loss alone.
        """
        schedule = self.terms.schedule
        turn, (known, order) = release // schedule.releases_per_pass, self._order
        if known != turn:
            order = schedule.order(self.public, self._key, turn)
            self._order = (turn, order)
        return schedule.rows(order, release)

    def in_places(
        self, release: int, answers: Float[np.ndarray, "records *each"]
    ) -> Float[np.ndarray, "batch *each"]:
        """The answers to a release, one for each of its `rows`; 0 in empty places of a secret batch.

        Guarantee: as many answers as records, or this raises.
        """
        schedule, number = self.terms.schedule, len(self.rows(release))
        if len(answers) != number:
            raise InvalidArgument("answers for another number of records than a batch: give all.")
        empty = schedule.batch_of(schedule.kind_of(release)) - number
        return np.pad(answers, [(0, empty), *[(0, 0)] * (answers.ndim - 1)])

    def through(
        self,
        program: Callable[[Permit, Memory], tuple[Memory, Out]],
        count: int = 1,
        answers: np.ndarray | None = None,
    ) -> Out:
        """Charge the next `count` releases, then run `program` with the permit for them.

        The program makes each of them once and gives back the last memory and what the driver wants;
        `answers` are handed to the port.

        Guarantee: nothing is released before the port has taken the charge, and no two programs run
        at a time. Past the run's last release this raises, and so does a program that made fewer or
        more releases than were charged. One that raised may be sent again, the same one on the same
        data: its releases get the same noise.
        """
        if not self._free.acquire(blocking=False):
            raise InvalidArgument("another program is inside this gate: send one at a time.")
        try:
            first, end, most = self.position, self.position + count, self.terms.schedule.releases
            if not first < end <= most:
                raise HorizonExceeded(
                    f"releases {first} .. {end - 1} of a run of {most}: plan a longer one."
                )
            # The sampler and the whole numbers of the lattice need 64 bits. JAX's own search for NaN
            # would raise at the first record that is not finite.
            with jax.enable_x64(True), jax.debug_nans(False), jax.debug_infs(False):
                permit = self._permit(first, count)
                self._port.charge(first, count, answers)
                memory, out = program(permit, self._memory)
            if int(memory.position) != end:
                raise InvalidArgument(
                    f"{count} releases were charged and {int(memory.position) - first} made: make "
                    "each once, in order."
                )
            self._memory, self.position = memory, end
            return out
        finally:
            self._free.release()

    def _permit(self, first: int, count: int) -> Permit:
        terms, schedule = self.terms, self.terms.schedule
        places = {kind: schedule.batch_of(kind) for kind in Kind}
        rows: dict[Kind, list[Any]] = {kind: [np.empty((0, places[kind]), int)] for kind in Kind}
        held: list[int] = []
        for number in range(first, first + count):
            kind = schedule.kind_of(number)
            # Of a window, who answers is known by their answers alone.
            found = np.empty(0, int) if schedule.windows else self.rows(number)
            held.append(len(found))
            rows[kind].append(np.pad(found, (0, places[kind] - len(found)))[None])
        # Floats become arrays: runs that differ in noise or clip share a compiled program.
        traced = jax.tree.map(lambda v: jnp.asarray(v) if isinstance(v, float) else v, terms)
        grads, diffs = (np.concatenate(rows[kind]) for kind in Kind)
        start, stop = (jnp.asarray(number, jnp.int32) for number in (first, first + count))
        key = jnp.asarray(self._key.words())
        several = np.array(held if schedule.secret else [], int)
        return Permit(traced, key, start, stop, grads, diffs, several, table=schedule.records)
