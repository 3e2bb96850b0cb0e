"""What must stay the same for a run to be resumed, each as a SHA-256.

A run that is resumed repeats releases that may have been seen, under the same noise. That is free of
charge only if they come out bit for bit the same, so data, start, loss and the programs that compute
them are compared first. The fingerprint of data is secret: who holds a candidate data set can check it
against any hash. Only the secret state holds it; what others may read has `ledger.data_id`.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import jax
import jax.extend.core
import numpy as np
from jax.sharding import NamedSharding
from jaxtyping import PyTree

from blindstep.errors import InvalidArgument
from blindstep.optimize.plan import Plan
from blindstep.trusted import sealed_json

# Bytes hashed at a time: what a memory-mapped data set needs of memory.
_CHUNK = 2**24


@dataclass(frozen=True)
class Fingerprints:
    """What a run is about, apart from its plan.

    Attributes:
        data: of the records (`of_data`).
        params: of the parameters it starts from.
        loss: of the traced loss; "" for one that cannot be traced.
        environment: of the versions and devices that compute it (`of_environment`).
    """

    data: str
    params: str
    loss: str
    environment: str


def of_plan(plan: Plan) -> str:
    """Of every number of the plan. Its notes are words for people, and may be reworded.

    `secure` counts where it is set: plans from before it existed keep their fingerprints.
    """
    numbers = {k: v for k, v in plan.to_dict().items() if k != "notes"}
    if not plan.secure:
        del numbers["secure"]
    return sealed_json.fingerprint(numbers)


def of_data(data: PyTree) -> str:
    """SHA-256 over names, shapes, dtypes and bytes of all leaves.

    The same for NumPy, memory-mapped and JAX arrays with the same content, however these are
    sharded. Cost: every byte is read once and hashed on one core (1.3 GB a second, measured on a
    memory-mapped file of 128 MiB), in pieces of 16 MiB; of a JAX array, one shard at a time is
    copied to the host.
    """
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(data):
        where = jax.tree_util.keystr(path)
        dtype = np.dtype(leaf.dtype)
        about = [where, list(np.shape(leaf)), dtype.name, dtype.str]
        digest.update(json.dumps(about).encode("ascii") + b"\n")
        for rows in map(np.atleast_1d, _host_rows(where, leaf)):
            size = max(1, _CHUNK // max(1, rows[:1].nbytes))
            for start in range(0, len(rows), size):
                piece = np.ascontiguousarray(rows[start : start + size])
                digest.update(piece.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _host_rows(where: str, leaf: Any) -> Iterator[np.ndarray]:
    """The rows of a leaf, in order, as arrays on the host."""
    if not isinstance(leaf, jax.Array):
        yield np.asarray(leaf)
        return
    if not leaf.is_fully_addressable:
        raise InvalidArgument(
            f"data{where} is spread over several processes, so no single one can fingerprint it: "
            "leave out checkpoint, ledger and budget for a multi-host run."
        )
    shards = {str(shard.index): shard for shard in leaf.addressable_shards}.values()
    by_rows = leaf.ndim > 0 and all(s.data.shape[1:] == leaf.shape[1:] for s in shards)
    if not by_rows:
        yield np.asarray(leaf)
        return
    for shard in sorted(shards, key=lambda s: s.index[0].start or 0):
        yield np.asarray(shard.data)


def of_loss(loss: Callable[..., Any], params: PyTree, data: PyTree) -> str:
    """SHA-256 of the traced loss: its operations, and the arrays that it closes over.

    A loss that calls back into Python (`jax.pure_callback`) is seen only up to that call.
    """
    record = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf)[1:], leaf.dtype), data)
    traced = jax.make_jaxpr(loss)(params, record)
    text = re.sub(r" at 0x[0-9a-f]+", "", str(traced))  # addresses differ between processes
    return hashlib.sha256((text + of_data(list(_constants(traced)))).encode()).hexdigest()


def _constants(jaxpr: Any) -> Iterator[np.ndarray]:
    """The arrays inside a traced function and inside the functions it calls."""
    if isinstance(jaxpr, jax.extend.core.ClosedJaxpr):
        yield from (np.asarray(value) for value in jaxpr.consts)
        jaxpr = jaxpr.jaxpr
    if isinstance(jaxpr, jax.extend.core.Jaxpr):
        for equation in jaxpr.eqns:
            yield from _constants(list(equation.params.values()))
    elif isinstance(jaxpr, (list, tuple)):
        for value in jaxpr:
            yield from _constants(value)


def of_environment(data: PyTree = None) -> str:
    """SHA-256 of what the last bits of a result depend on: versions, devices, compiler flags."""
    device = jax.devices()[0]
    placed = (getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(data))
    return sealed_json.fingerprint(
        {
            "versions": [version(name) for name in ("jax", "jaxlib", "numpy")],
            "device": [device.platform, device.device_kind, platform.machine(), os.cpu_count()],
            "sharding": [str(each) for each in placed if isinstance(each, NamedSharding)],
            "flags": os.environ.get("XLA_FLAGS", ""),
        }
    )


def of_run(loss: Callable[..., Any], params: PyTree, data: PyTree) -> Fingerprints:
    """All of them, for a loss that JAX can trace."""
    return Fingerprints(
        data=of_data(data),
        params=of_data(jax.tree.map(np.asarray, params)),
        loss=of_loss(loss, params, data),
        environment=of_environment(data),
    )


def of_questions(records: str | None, params: PyTree) -> Fingerprints:
    """All of them, where neither data nor loss can be seen: of the data there is a name at most."""
    return Fingerprints(
        data=sealed_json.fingerprint(records),
        params=of_data(jax.tree.map(np.asarray, params)),
        loss="",
        environment=of_environment(),
    )
