"""What a checkpoint stores: a run's state, memory, keys and fingerprints as named plain arrays."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from blindstep.ledger.checkpoint import Arrays
from blindstep.ledger.fingerprints import Fingerprints
from blindstep.ledger.refusals import CheckpointMismatch
from blindstep.private.gate import Memory
from blindstep.private.noise import Keys, NoiseKey, public_key

_OF_KEYS = {
    "key.noise": ((8,), np.dtype(np.uint32)),
    "key.public": ((2,), np.dtype(np.uint32)),
    "key.seeded": ((), np.dtype(np.bool_)),
    "key.names": ((32,), np.dtype(np.uint8)),
}


class Packed(NamedTuple):
    """All that a checkpoint holds, apart from its public description: secret, but for `state`."""

    state: PyTree  # the driver's state: any pytree of arrays
    memory: Memory  # the gate's memory
    keys: Keys  # both keys of the run
    secret: bytes  # under which the run's data and answers are named (`names`)
    known: Fingerprints  # what must be the same when the run goes on, with the data's hash
    saved: Arrays  # the driver's own arrays, which may be answers


def pack(packed: Packed) -> Arrays:
    """Everything as arrays of numbers, named by where they belong."""
    of_run = _named("state", packed.state) | _named("memory", packed.memory)
    arrays = {name: np.asarray(leaf) for name, leaf in of_run.items()}
    arrays |= {f"saved.{name}": np.asarray(array) for name, array in packed.saved.items()}
    arrays["key.noise"] = packed.keys.noise.words()
    arrays["key.public"] = np.asarray(jax.random.key_data(packed.keys.public))
    arrays["key.seeded"] = np.asarray(packed.keys.seeded)
    arrays["key.names"] = np.frombuffer(packed.secret, np.uint8)
    for name, digest in asdict(packed.known).items():
        arrays[f"known.{name}"] = np.frombuffer(bytes.fromhex(digest), np.uint8)
    return arrays


def unpack(arrays: Mapping[str, np.ndarray], state: PyTree, memory: Memory, where: str) -> Packed:
    """What `pack` packed; names, shapes and dtypes must be those of `state` and `memory`.

    `where` names the file in the refusal.
    """
    template = _named("state", state) | _named("memory", memory)
    shapes = {name: (leaf.shape, np.dtype(leaf.dtype)) for name, leaf in template.items()}
    hashes = [arrays.get(f"known.{name}") for name in Fingerprints.__annotations__]
    found = {n: a for n, a in arrays.items() if not n.startswith(("saved.", "known."))}
    if {n: (a.shape, a.dtype) for n, a in found.items()} != shapes | _OF_KEYS or any(
        a is None or a.ndim != 1 or a.dtype != np.uint8 for a in hashes
    ):
        raise CheckpointMismatch(
            f"{where} holds a state of other names, shapes or dtypes than this version of blindstep "
            "uses: resume it with the version that began it."
        )
    leaves = [jnp.asarray(found[name]) for name in template]
    state, memory = jax.tree.unflatten(jax.tree.structure((state, memory)), leaves)
    noise, public = NoiseKey(found["key.noise"]), public_key(found["key.public"])
    keys, secret = Keys(noise, public, bool(found["key.seeded"])), found["key.names"].tobytes()
    known = {n: bytes(arrays[f"known.{n}"]).hex() for n in Fingerprints.__annotations__}
    saved = {n.removeprefix("saved."): a for n, a in arrays.items() if n.startswith("saved.")}
    return Packed(state, memory, keys, secret, Fingerprints(**known), saved)


def _named(prefix: str, tree: PyTree) -> dict[str, Any]:
    """The leaves of a pytree by name: PREFIX.NUMBER.PATH, where the number makes them unique."""
    named = {}
    for number, (path, leaf) in enumerate(jax.tree_util.tree_leaves_with_path(tree)):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        named[f"{prefix}.{number}." + re.sub(r"[^A-Za-z0-9_.-]", "_", name)] = leaf
    return named
