"""The two programs that the speed benchmark compares: a private round, and bare evaluations.

The *bare limit* is the least that any method with so many evaluations of this loss has to do: the
same number of evaluations, at points made before, compiled, with no randomness, no noise and no
learner. Of several ways to lay it out the fastest
counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.speed_problems import Problem
from blindstep.losses.pytrees import ParameterSpace
from blindstep.private.gate import Gate, Memory, Permit
from blindstep.private.noise import fresh_keys
from blindstep.run import compiled


@dataclass(frozen=True)
class Program:
    """A compiled program, ready to be called.

    Attributes:
        run: do it once, and wait for it.
        compile_seconds: tracing and compiling it.
        bytes: what it holds at most: arguments, results and what is in between, by XLA's count.
        layout: how the bare limit was laid out.
    """

    run: Callable[[], Any]
    compile_seconds: float
    bytes: int
    layout: str = ""


def _program(lower: Callable[[], Any], arguments: tuple[Any, ...], layout: str = "") -> Program:
    began = time.perf_counter()
    program = lower().compile()
    seconds = time.perf_counter() - began
    plain = getattr(program, "compiled", program)  # equinox wraps jax's
    memory = plain.memory_analysis()
    held = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
    run = lambda: jax.block_until_ready(program(*arguments))  # noqa: E731
    return Program(run, seconds, held, layout)


class _NoLedger:
    """A port that charges nobody: the records are made up."""

    def charge(self, first: int, count: int, answers: np.ndarray | None) -> None:
        """Nothing to write down."""


def full(problem: Problem) -> Program:
    """One round of the compiled driver: the code that `blindstep.minimize` runs."""
    machine = problem.plan.build()
    if problem.sampler is not None:
        machine = eqx.tree_at(lambda m: m.estimator.sampler, machine, problem.sampler)
    space = ParameterSpace.of(problem.params)
    start = machine.begin(space.flatten(problem.params))
    gate = Gate(problem.plan.terms, fresh_keys(3), _NoLedger())
    programs: list[Program] = []
    run_part: Any = compiled.run_part  # of equinox, whose `lower` has no type

    def program(permit: Permit, memory: Memory) -> tuple[Memory, Any]:
        arguments = (
            compiled.prepare(machine, space),
            problem.loss,
            space,
            permit,
            memory,
            start,
            jax.tree.map(jnp.asarray, problem.data),
            gate.public,
            machine.horizon // machine.period,
            None,  # not spread over devices
        )
        programs.append(_program(lambda: run_part.lower(*arguments), arguments))
        memory, *out = programs[0].run()
        return memory, out

    gate.through(program, machine.horizon)
    return programs[0]


def bare(problem: Problem) -> list[Program]:
    """Every layout of the bare limit: the fastest counts."""
    shared = problem.plan.sharing != "record"
    return _shared_layouts(problem) if shared else _own_layouts(problem)


def _points(problem: Problem, sets: int) -> jax.Array:
    """Precomputed points near the start: `sets` of 2 q of them."""
    space = ParameterSpace.of(problem.params)
    start = np.asarray(space.flatten(problem.params), np.float32)
    shape = (sets, 2 * problem.plan.directions, problem.plan.dim)
    steps = np.random.default_rng(1).standard_normal(shape, np.float32)
    steps *= np.float32(problem.plan.smoothing / np.sqrt(problem.plan.dim))
    steps += start
    return jnp.asarray(steps)


def _shared_layouts(problem: Problem) -> list[Program]:
    """All records of a batch at the same points: so many points at once, the others in turn."""
    plan, space = problem.plan, ParameterSpace.of(problem.params)
    points = _points(problem, 1)[0]
    batches = jax.tree.map(
        lambda leaf: jnp.asarray(leaf).reshape(-1, plan.first_batch, *leaf.shape[1:]), problem.data
    )
    at_once = (1, 8) if jax.default_backend() == "cpu" else (8, 32, len(points))

    def build(size: int) -> Program:
        def evaluate(points: jax.Array, batches: Any) -> jax.Array:
            def at(point: jax.Array, batch: Any) -> jax.Array:
                return jax.vmap(lambda r: problem.loss(space.unflatten(point), r))(batch)

            def step(batch: Any) -> jax.Array:
                some = size if size > 1 else None
                return jax.lax.map(lambda point: at(point, batch), points, batch_size=some)

            return jax.lax.map(step, batches)

        lower = lambda: jax.jit(evaluate).lower(points, batches)  # noqa: E731
        return _program(lower, (points, batches), f"{size} points at once")

    return [build(size) for size in at_once]


def _own_layouts(problem: Problem) -> list[Program]:
    """Each record at points of its own: so many records at once, from a pool that stays in cache."""
    space = ParameterSpace.of(problem.params)
    on_processor = jax.default_backend() == "cpu"
    records = problem.records // 64 * 64

    def build(size: int) -> Program:
        pool = _points(problem, 2 * size)
        chunks = jax.tree.map(
            lambda leaf: jnp.asarray(leaf)[:records].reshape(-1, size, *leaf.shape[1:]),
            problem.data,
        )

        def evaluate(pool: jax.Array, chunks: Any) -> jax.Array:
            def at(points: jax.Array, record: Any) -> jax.Array:
                return jax.vmap(lambda p: problem.loss(space.unflatten(p), record))(points)

            def step(pair: tuple[jax.Array, Any]) -> jax.Array:
                # Two halves in turn: points that never changed would be evaluated in part once.
                points = jax.lax.dynamic_slice_in_dim(pool, pair[0] % 2 * size, size)
                return jax.vmap(at)(points, pair[1])

            return jax.lax.map(step, (jnp.arange(records // size), chunks))

        lower = lambda: jax.jit(evaluate).lower(pool, chunks)  # noqa: E731
        return _program(lower, (pool, chunks), f"{size} records at once")

    return [build(size) for size in ((1, 4, 16) if on_processor else (32, 64))]
