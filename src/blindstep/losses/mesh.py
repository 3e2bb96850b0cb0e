"""Data that the user has sharded over a mesh of devices: it stays where it is, and work follows it.

Each device evaluates its share of a batch, and the gate adds up what the devices found, exactly.
Noise and directions are functions of keys, the same on every device. So the result is that of one
device, up to how the loss itself is rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree


def place(data: PyTree) -> PyTree:
    """Every leaf as a JAX array; one that is sharded stays on the devices it is on.

    In a mesh with explicit axes every gather of rows would have to say where its result lives. The
    compiler can tell: the same devices, with automatic axes.
    """

    def put(leaf: Any) -> Array:
        array = jnp.asarray(leaf)
        sharding = array.sharding
        if isinstance(sharding, NamedSharding) and set(sharding.mesh.axis_types) != {AxisType.Auto}:
            mesh = Mesh(np.asarray(sharding.mesh.devices), sharding.mesh.axis_names)
            array = jax.device_put(array, NamedSharding(mesh, sharding.spec))
        return array

    return jax.tree.map(put, data)


def over_records(data: PyTree) -> NamedSharding | None:
    """How the records of `data` are spread over devices; None if they are not."""
    for leaf in jax.tree.leaves(data):
        sharding = getattr(leaf, "sharding", None)
        if isinstance(sharding, NamedSharding) and sharding.spec and sharding.spec[0] is not None:
            return NamedSharding(sharding.mesh, PartitionSpec(sharding.spec[0]))
    return None


def everywhere(tree: PyTree, sharding: NamedSharding) -> PyTree:
    """Arrays inside a program, whole on every device of the mesh: any process can read them."""
    whole = NamedSharding(sharding.mesh, PartitionSpec())
    return jax.tree.map(lambda leaf: jax.lax.with_sharding_constraint(leaf, whole), tree)


def put_everywhere(tree: PyTree, sharding: NamedSharding) -> PyTree:
    """Arrays of this host as `everywhere` leaves them: a program takes both, compiled once."""
    whole = NamedSharding(sharding.mesh, PartitionSpec())

    def put(leaf: Array) -> Array:
        if leaf.sharding.device_set == whole.device_set:
            return leaf
        content = np.asarray(leaf)
        return jax.make_array_from_callback(leaf.shape, whole, lambda index: content[index])

    return jax.tree.map(put, tree)


def spread(evaluate: Callable[..., Array], sharding: NamedSharding) -> Callable[..., Array]:
    """`evaluate`, such that a batch of calls (`jax.vmap`) is spread over devices like the records.

    It is called for one record at a time; only when these calls are batched is there an axis to
    spread. The values are the same.
    """

    @custom_vmap
    def together(points: Array, record: PyTree) -> tuple[Array, PyTree]:
        return points, record

    @together.def_vmap
    def _(size: int, batched: list[Any], points: Array, record: PyTree) -> tuple[Any, Any]:
        del size
        constrain = jax.tree.map(
            lambda value, has: jax.lax.with_sharding_constraint(value, sharding) if has else value,
            (points, record),
            tuple(batched),
        )
        return constrain, tuple(batched)

    return lambda points, record: evaluate(*together(points, record))
