"""Compiled programs that go when nobody needs them any more.

JAX and Equinox keep what they compile for as long as the process lives. A worker lives for months, and
each study whose numbers are its own (its noise is part of the program) is 10 MB of machine code. So the
program of a window belongs to the studies with the same plan, and goes with the last of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

import equinox as eqx
import jax

from blindstep.run.loop import step_of_window


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, compiled for each of the shapes and constants that it is called with.

    As `equinox.filter_jit` does it, but what was compiled goes with the function that this returns.
    """

    def body(dynamic: list[Any], static: tuple[Any, ...], structure: Any) -> Any:
        leaves = [
            each if kept is None else kept[1] for each, kept in zip(dynamic, static, strict=True)
        ]
        return function(*jax.tree.unflatten(structure, leaves))

    program = jax.jit(body, static_argnums=(1, 2))

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        leaves, structure = jax.tree.flatten(arguments)
        arrays = [eqx.is_array(leaf) for leaf in leaves]
        dynamic = [leaf if array else None for leaf, array in zip(leaves, arrays, strict=True)]
        # With its type: 1, 1.0 and True are equal, and are not the same program.
        static = [
            None if array else (type(leaf), leaf)
            for leaf, array in zip(leaves, arrays, strict=True)
        ]
        return program(dynamic, tuple(static), structure)

    return call


class Program:
    """The release of a window, as one plan has it.

    Attributes:
        step_of_window: the step, compiled.
        sizes: for how many people it was compiled.
    """

    def __init__(self) -> None:
        self.step_of_window = compiled(step_of_window)
        self.sizes: set[int] = set()


_programs: WeakValueDictionary[str, Program] = WeakValueDictionary()


def program_of(plan: str) -> Program:
    """The program of this plan, which all studies with it share."""
    return _programs.setdefault(plan, Program())
