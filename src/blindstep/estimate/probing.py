"""From the loss to the vectors that a batch's records hand to the gate, in bounded memory.

`Probing` makes probe points, evaluates the loss and turns its values into vectors, a chunk of records
and directions at a time. How large chunks are, and which directions were drawn ahead, changes speed and
memory, not results (up to rounding).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree

from blindstep.estimate import draws, estimators
from blindstep.estimate.directions import join
from blindstep.estimate.draws import opaque_true, stored
from blindstep.estimate.estimators import Chunk, ValueEstimator
from blindstep.estimate.vectors import Query, Vectors
from blindstep.private.gate import Contributions, number_of_rows

Points = Float[Array, "2 some dim"]
# One record's losses at pairs of points.
Evaluate = Callable[[Points, PyTree], Float[Array, "2 some"]]
Rows = Int[Array, " some"]

# Up to this many directions of a shared frame are made one by one.
_FEW = 8


@dataclass(frozen=True)
class Probing(Vectors):
    """The vectors of a batch's records, from values of the loss at probe points."""

    estimator: ValueEstimator  # what is estimated, along which directions
    # from row numbers in the data, and places in the batch, to these records
    take: Callable[[Rows, Rows], PyTree]
    # from the size of the batch to the function that evaluates the loss
    evaluate: Callable[[int], Evaluate]
    chunk: Callable[[int], Chunk]  # from the size of the batch to how much is computed at once
    # whether the records are spread over devices; then each step draws its own directions
    sharded: bool = False
    # compact directions that were made ahead, for the records at these consecutive places of the
    # batch; where directions are shared, those of the block, for any places
    prepared: Callable[[Rows], PyTree] | None = None
    rows: int | None = None  # number of rows that `take` chooses from by row number
    answers: int | None = None  # number of answers that it chooses from by place
    # whose directions belong to each place, where that is not the place's own business
    whose: Int[Array, " answers"] | None = None

    def contributions(self, query: Query, batch: int) -> Contributions:
        """Along directions of each record's own, or along those that the block shares."""
        chunk, prepared = self.chunk(batch), self.prepared
        task = _Task(self.estimator, query, self.evaluate(batch), chunk)
        made_by = functools.partial(Contributions, rows=self.rows, answers=self.answers)
        if self.estimator.shared:
            frame = self.ready(query.key).frame
            return made_by(
                chunk.records, lambda rows, at: task.along_shared(self.take(rows, at), frame)
            )
        if prepared is not None:
            return made_by(
                chunk.records, lambda rows, at: task.along_own(self.take(rows, at), prepared(at))
            )

        def drawn(rows: Rows, places: Rows) -> Float[Array, "drawn dim"]:
            whose = places if self.whose is None else self.whose[places]
            compact = self.estimator.prepare(draws.fold_in(query.key, whose))

            def part(some: tuple[PyTree, Rows, Rows]) -> Float[Array, "some dim"]:
                return task.along_own(self.take(some[1], some[2]), some[0])

            number = len(rows) // chunk.records
            parts = jax.tree.map(
                lambda leaf: leaf.reshape(number, chunk.records, *leaf.shape[1:]),
                (compact, rows, places),
            )
            return jax.lax.map(part, parts).reshape(len(rows), -1)

        return made_by(chunk.drawn, drawn)

    def ready(self, key: Key[Array, ""]) -> Probing:
        """This probing with the shared frame of `key`."""
        if not self.estimator.shared or self.prepared is not None:
            return self
        frame = self.estimator.prepare_one(key)
        return replace(self, prepared=lambda _: frame)

    @property
    def frame(self) -> PyTree:
        """The shared frame, as it is kept."""
        if not self.estimator.shared or self.prepared is None:
            return None
        return self.prepared(jnp.zeros(1, jnp.int32))

    def steps_ahead(self, steps: int, batch: int) -> int:
        """As many as the device likes to draw at once."""
        return 1 if self.sharded else estimators.steps_ahead(self.estimator, steps, batch)

    def ahead(self, keys: Key[Array, " steps"], batch: int) -> Callable[[Int[Array, ""]], Probing]:
        """The frames of these steps, or the directions of all their records."""
        if self.prepared is not None:
            return lambda _: self
        if self.estimator.shared:
            frames = self.estimator.prepare(keys)
            return lambda step: replace(
                self, prepared=lambda _: jax.tree.map(lambda leaf: leaf[step], frames)
            )
        keys = jax.vmap(lambda key: draws.fold_in(key, jnp.arange(batch)))(keys).reshape(-1)
        compact, count = self.estimator.prepare(keys), self.chunk(batch).records

        def slice_exact(first: Int[Array, ""]) -> PyTree:
            """`count` entries from `first`; the caller guarantees that they exist."""
            return jax.tree.map(
                lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, first, count), compact
            )

        def of_step(step: Int[Array, ""]) -> Probing:
            def of_places(places: Rows) -> PyTree:
                if batch % count == 0:
                    return slice_exact(step * batch + places[0])
                return jax.tree.map(lambda leaf: leaf[step * batch + places], compact)

            return replace(self, prepared=of_places)

        return of_step


def probing_of_loss(
    estimator: ValueEstimator,
    at: Callable[[Float[Array, " dim"], PyTree], Any],
    data: PyTree,
    spread: Callable[[Evaluate], Evaluate] | None = None,
) -> Probing:
    """Probing of a loss that JAX can trace; the arguments are those of `gradients.vectors_of_loss`."""
    record_size = estimators.size_of_record(data)

    def evaluate(batch: int) -> Evaluate:
        size = estimators.points_together(estimator, batch)

        def losses(points: Points, record: PyTree) -> Float[Array, "2 some"]:
            # Points in one axis: with two, XLA transposes them in memory before a matrix product.
            flat = points.reshape(-1, points.shape[-1])
            if estimator.shared:
                values = jax.lax.map(
                    lambda point: at(point, record), flat, batch_size=size if size > 1 else None
                )
            else:
                values = jax.vmap(lambda point: at(point, record))(flat)
            return values.reshape(points.shape[:2])

        return losses if spread is None else spread(losses)

    return Probing(
        estimator,
        lambda rows, _: jax.tree.map(lambda leaf: leaf[rows], data),
        evaluate,
        lambda batch: estimators.chunk_for(estimator, batch, record_size),
        sharded=spread is not None,
        rows=number_of_rows(data),
    )


def probing_of_answers(
    estimator: ValueEstimator,
    answers: Float[Array, "batch 2 q"],
    whose: Int[Array, " batch"] | None = None,
) -> Probing:
    """Probing whose values came from outside: the losses at `probe_points`, in the batch's order.

    With `whose`, each answer comes with the number of the person who gave it, whose directions these
    are, wherever it stands.
    """
    return Probing(
        estimator,
        lambda _, places: answers[places],
        lambda _: lambda points, values: values,
        lambda batch: estimators.chunk_of_answers(estimator, batch),
        answers=len(answers),
        whose=whose,
    )


def probe_points(
    estimator: ValueEstimator, query: Query, places: Int[Array, " some"]
) -> Float[Array, "sets 2 q dim"]:
    """The points at which to evaluate the records at these places of the batch, outside.

    In windows people have no places: `places` are the numbers that stand for them.

    One set of points for each record; where directions are shared, one set for all records.
    """
    if estimator.shared:
        frame = estimator.prepare_one(query.key)
        return estimator.probes(query, (join(estimator.rows(frame)),))[None]
    compact = estimator.prepare(draws.fold_in(query.key, places))

    def points(own: PyTree) -> Float[Array, "2 q dim"]:
        return estimator.probes(query, (estimator.turned(query, join(estimator.rows(own))),))

    return jax.vmap(points)(compact)


@dataclass(frozen=True)
class _Task:
    """One query to one batch. Its methods make the vectors of some records of the batch."""

    estimator: ValueEstimator
    query: Query
    evaluate: Evaluate
    chunk: Chunk

    def along_own(self, records: PyTree, compact: PyTree) -> Float[Array, "some dim"]:
        """The estimates e of records with directions of their own, in all d coordinates."""
        if self.chunk.directions == self.estimator.directions:
            return self._all_directions(records, compact)
        return jax.vmap(self._some_directions_at_a_time)(records, compact)

    def _all_directions(self, records: PyTree, compact: PyTree) -> Float[Array, "some dim"]:
        estimator, true = self.estimator, opaque_true(jax.random.key_data(self.query.key))

        def points_along(directions: Float[Array, "q dim"]) -> Float[Array, "2*q dim"]:
            return estimator.probes(self.query, (directions,)).reshape(-1, estimator.dim)

        def estimate(
            directions: Float[Array, "q dim"], points: Float[Array, "2*q dim"], record: PyTree
        ) -> Float[Array, " dim"]:
            values = self.evaluate(points.reshape(2, *directions.shape), record)
            return _sum_along(estimator.coefficients(self.query, values), directions)

        rows = jax.vmap(lambda own: estimator.turned(self.query, join(estimator.rows(own))))
        directions = stored(true, rows, compact)
        # All points in one axis: XLA evaluates most losses faster like that.
        points = stored(true, jax.vmap(points_along), directions)
        return jax.vmap(estimate)(directions, points, records)

    def _some_directions_at_a_time(self, record: PyTree, compact: PyTree) -> Float[Array, " dim"]:
        estimator, some = self.estimator, self.chunk.directions

        def add(total: Array, start: Int[Array, ""]) -> tuple[Array, None]:
            which = start + jnp.arange(some)
            # Past the end the last direction is evaluated again, and its values count 0.
            rows = estimator.rows(compact, jnp.minimum(which, estimator.directions - 1))
            directions = (estimator.turned(self.query, join(rows)),)
            values = self.evaluate(estimator.probes(self.query, directions), record)
            values = jnp.where(which < estimator.directions, values, 0.0)
            coefficients = estimator.coefficients(self.query, values)
            return total + _sum_along(coefficients, join(directions)), None

        starts = jnp.arange(0, estimator.directions, some)
        return jax.lax.scan(add, jnp.zeros(estimator.dim), starts)[0]

    def along_shared(self, records: PyTree, frame: PyTree) -> Float[Array, "some size"]:
        """The coefficients of records along the directions that their block shares."""
        estimator, query, some = self.estimator, self.query, self.chunk.directions
        number = estimator.directions

        def points_from(start: Int[Array, ""], room: Points) -> Points:
            """The points of the directions from `start` on, written over the chunk before."""
            if some == number:
                return estimator.probes(query, estimator.rows(frame))
            if some > _FEW:
                directions = estimator.rows(frame, start + jnp.arange(some))
                return estimator.probes(query, directions, room)
            for i in range(some):  # one by one: no direction has to be joined from its parts
                direction = estimator.rows(frame, (start + i)[None])
                room = estimator.write_probes(query, direction, room, i)
            return room

        def evaluate(room: Points, start: Int[Array, ""]) -> tuple[Points, Array]:
            points = points_from(start, room)
            return points, jax.vmap(self.evaluate, (None, 0))(points, records)

        # The last chunk is moved forward to end with the last direction; what it repeats is cut off.
        starts = jnp.arange(0, number, some)
        room = jnp.zeros((2, some, estimator.dim), estimator.precision)
        _, values = jax.lax.scan(evaluate, room, jnp.minimum(starts, number - some))
        values = jnp.moveaxis(values, 0, 2)  # (records, 2, chunks, directions)
        whole, last = (starts.size - 1) * some, values[:, :, -1]
        before = values[:, :, :-1].reshape(*last.shape[:2], whole)
        values = jnp.concatenate([before, last[..., whole - number :]], axis=-1)
        return estimator.coefficients(query, values)


def _sum_along(
    coefficients: Float[Array, " q"], directions: Float[Array, "q dim"]
) -> Float[Array, " dim"]:
    """sum_j c_j u_j of one record, in the precision of the directions.

    Larger coefficients count as 2^96 in float32 and 2^768 in float64, so that no sum overflows.
    """
    largest = 2.0 ** (0.75 * jnp.finfo(directions.dtype).maxexp)
    small = jnp.clip(coefficients, -largest, largest).astype(directions.dtype)
    return (small @ directions).astype(jnp.float64)
