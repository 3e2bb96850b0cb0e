"""What must stay the same for a run to be resumed, and names for what is secret.

*Fingerprints.* A resumed run repeats releases that may have been seen, under the same noise. That is
free of charge only if they come out bit for bit the same. So data, start, loss and the programs that
compute them are compared first, each by its SHA-256. The fingerprint of the data is secret: a guess can
be checked against it. Only the secret part of a checkpoint holds it; others may read `data_id`.

*Names.* A ledger is for others to read. It must tell one noise key, data set or vector of answers from
another, and its readers must learn nothing of them. A plain hash would let a reader check guesses:
anyone who knows all records but one could try every value of that one, and a vote is one bit. So each
name is an HMAC-SHA256.

- Data and answers are named under a *naming secret*: 32 bytes from the operating system, drawn for each
  run and kept in its checkpoint only. No seed makes it, so these names tell nothing, even to somebody
  who knows the seed of the run.
- A noise key is named under itself, with the ledger's random id: a key has one name throughout one
  ledger, and different names in different ledgers. Nobody can guess 256 random bits; but *anyone who
  knows or can guess the seed* of a seeded run can compute its key, and the name confirms the guess.
  Such a run is not private against them anyway.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from types import CodeType
from typing import Any, Protocol, runtime_checkable

import jax
import jax.extend.core
import numpy as np
from jax.sharding import NamedSharding
from jaxtyping import PyTree

from blindstep.errors import InvalidArgument
from blindstep.ledger import files
from blindstep.processes.jax_group import JaxGroup

# Bytes hashed at a time: a memory-mapped data set takes no more memory than this.
_CHUNK = 2**24


@dataclass(frozen=True)
class Fingerprints:
    """What a run is about, apart from its plan."""

    data: str  # of the records (`of_data`): secret
    params: str  # of the parameters that it starts from
    loss: str  # of the traced loss; "" for a loss that cannot be traced
    environment: str  # of the versions and devices that compute it (`of_environment`)

    @property
    def about(self) -> str:
        """All but the environment: under a user's seed, what the noise hangs on besides the seed."""
        return f"{self.data} {self.params} {self.loss}"


def of_plan(plan: Mapping[str, Any]) -> str:
    """SHA-256 of a JSON-ready plan without its "notes": these are words for people, free to change."""
    return files.fingerprint({name: v for name, v in plan.items() if name != "notes"})


def of_data(data: PyTree, group: JaxGroup | None = None) -> str:
    """SHA-256 over the names, shapes, dtypes and bytes of all leaves of a pytree of arrays.

    NumPy, memory-mapped and JAX arrays with the same content have the same fingerprint, however they
    are sharded. Cost: every byte is read once and hashed on one core (1.3 GB a second, measured on a
    memory-mapped file of 128 MiB), 16 MiB at a time. A JAX array is copied to the host shard by shard.

    Of an array that is spread over processes, each process of the `group` reads its own share. The
    fingerprint is the same in all of them; it is also one of who holds which share.
    """
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(data):
        where = jax.tree_util.keystr(path)
        dtype = np.dtype(leaf.dtype)
        about = [where, list(np.shape(leaf)), dtype.name, dtype.str]
        digest.update(json.dumps(about).encode("ascii") + b"\n")
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            digest.update(_shares(where, leaf, group))
            continue
        for rows in _host_rows(leaf):
            _update(digest, rows)
    return digest.hexdigest()


def _update(digest: Any, array: np.ndarray) -> None:
    """Hash the bytes of an array, some rows at a time."""
    rows = np.atleast_1d(array)
    size = max(1, _CHUNK // max(1, rows[:1].nbytes))
    for start in range(0, len(rows), size):
        piece = np.ascontiguousarray(rows[start : start + size])
        digest.update(piece.reshape(-1).view(np.uint8).data)


def _shares(where: str, leaf: jax.Array, group: JaxGroup | None) -> bytes:
    """One SHA-256 for each process, of the part of the leaf that it holds and of where that part is."""
    if group is None:
        raise InvalidArgument(
            f"data{where} is spread over several processes, and this driver reads whole data: use "
            "blindstep.minimize."
        )
    own = hashlib.sha256()
    for index, shard in sorted({str(s.index): s for s in leaf.addressable_shards}.items()):
        own.update(index.encode() + b"\n")
        _update(own, np.asarray(shard.data))
    return group.gather(f"data{where}", np.frombuffer(own.digest(), np.uint8)).tobytes()


def _host_rows(leaf: Any) -> Iterator[np.ndarray]:
    """The rows of a leaf, in order, as NumPy arrays."""
    if not isinstance(leaf, jax.Array):
        return iter([np.asarray(leaf)])
    shards = {str(shard.index): shard for shard in leaf.addressable_shards}.values()
    if leaf.ndim == 0 or any(s.data.shape[1:] != leaf.shape[1:] for s in shards):
        return iter([np.asarray(leaf)])
    by_rows = sorted(shards, key=lambda s: s.index[0].start or 0)
    return (np.asarray(shard.data) for shard in by_rows)


def of_loss(loss: Callable[..., Any], params: PyTree, data: PyTree) -> str:
    """SHA-256 of the traced loss: its operations, and the arrays that it closes over.

    Of a loss that calls back into Python (`jax.pure_callback`), what happens in Python is not seen.
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
    return files.fingerprint(
        {
            "versions": [version(name) for name in ("blindstep", "jax", "jaxlib", "numpy")],
            "device": [device.platform, device.device_kind, platform.machine(), os.cpu_count()],
            "sharding": [str(each) for each in placed if isinstance(each, NamedSharding)],
            "flags": os.environ.get("XLA_FLAGS", ""),
        }
    )


def of_run(
    loss: Callable[..., Any], params: PyTree, data: PyTree, group: JaxGroup | None = None
) -> Fingerprints:
    """All fingerprints of a run whose loss JAX can trace."""
    start, records = of_data(jax.tree.map(np.asarray, params)), of_data(data, group)
    return Fingerprints(records, start, of_loss(loss, params, data), of_environment(data))


def of_questions(cohort: str | None, params: PyTree, data: PyTree = None) -> Fingerprints:
    """All fingerprints of a run whose loss is elsewhere; data that are not here have a name at most."""
    start = of_data(jax.tree.map(np.asarray, params))
    records = files.fingerprint(cohort) if data is None else of_data(data)
    return Fingerprints(records, start, "", of_environment())


def of_values(
    judged: Sequence[tuple[Callable[..., Any], PyTree, PyTree]], data: PyTree
) -> Fingerprints:
    """All fingerprints of values of these losses, each at its own parameters and on its own data.

    A loss that JAX cannot trace is known by its code; one without code (a callable object) is not.
    """
    known = of_questions(None, [params for _, params, _ in judged], data)
    names = []
    for loss, params, own in judged:
        try:
            names.append(of_loss(loss, params, own))
        except Exception:  # whatever a loss does that was never meant for JAX's tracers
            names.append(repr(_code(getattr(loss, "__code__", None))))
    return replace(known, loss=files.fingerprint(names))


def _code(code: Any) -> Any:
    """What a Python function does, without where it stands."""
    if not isinstance(code, CodeType):
        return sorted(map(repr, code)) if isinstance(code, frozenset) else repr(code)
    return code.co_code.hex(), code.co_names, [_code(each) for each in code.co_consts]


@runtime_checkable
class NoiseWords(Protocol):
    """What is needed of a noise key (`private.noise.NoiseKey`), so that a ledger needs no JAX."""

    def words(self) -> np.ndarray:
        """The eight secret words of 32 bits."""
        ...


def key_id(key: NoiseWords, ledger: str) -> str:
    """The name of a noise key in the ledger of this id."""
    words = key.words().astype("<u4").tobytes()
    return hmac.digest(words, b"blindstep noise key " + ledger.encode(), "sha256").hex()


def data_id(secret: bytes, fingerprint: str) -> str:
    """The name of a data set in one run; `fingerprint` is the secret `fingerprints.of_data`."""
    return _named(secret, b"data", fingerprint.encode())


def answers_id(secret: bytes, step: int, answers: np.ndarray) -> str:
    """The name of the answers that a step of one run is released from. All NaNs are the same."""
    values = np.where(np.isnan(answers), np.nan, answers).astype("<f8")
    return _named(secret, b"answers", step.to_bytes(8, "little") + values.tobytes())


def _named(secret: bytes, use: bytes, content: bytes) -> str:
    return hmac.digest(hmac.digest(secret, use, "sha256"), content, "sha256").hex()
