"""A run's state, keys and fingerprints as named plain arrays, and back: what a checkpoint stores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from blindstep.drivers.fingerprints import Fingerprints
from blindstep.optimize.conversion import State
from blindstep.trusted.checkpoint import Arrays
from blindstep.trusted.randomness import Keys
from blindstep.trusted.refusals import CheckpointMismatch

_OF_KEYS = {
    "key.noise": ((8,), np.dtype(np.uint32)),
    "key.public": ((2,), np.dtype(np.uint32)),
    "key.seeded": ((), np.dtype(np.bool_)),
}


class Packed(NamedTuple):
    """What a checkpoint holds, the public meta data apart.

    Attributes:
        state: where the run stands.
        keys: both keys: secret.
        known: what must be the same when the run goes on.
        saved: the driver's own arrays.
    """

    state: State
    keys: Keys
    known: Fingerprints
    saved: Arrays


def pack(packed: Packed) -> Arrays:
    """Everything as arrays of numbers, named by where they belong."""
    arrays = {name: np.asarray(leaf) for name, leaf in _named(packed.state).items()}
    arrays |= {f"saved.{name}": np.asarray(array) for name, array in packed.saved.items()}
    arrays["key.noise"] = np.asarray(packed.keys.noise)
    arrays["key.public"] = np.asarray(jax.random.key_data(packed.keys.public))
    arrays["key.seeded"] = np.asarray(packed.keys.seeded)
    for name, digest in asdict(packed.known).items():
        arrays[f"known.{name}"] = np.frombuffer(bytes.fromhex(digest), np.uint8)
    return arrays


def unpack(arrays: Mapping[str, np.ndarray], like: State, where: str) -> Packed:
    """What `pack` packed; its state must have the shapes of `like`. `where` is for the refusal."""
    template = _named(like)
    shapes = {name: (leaf.shape, np.dtype(leaf.dtype)) for name, leaf in template.items()}
    shapes |= _OF_KEYS
    hashes = [arrays.get(f"known.{name}") for name in Fingerprints.__annotations__]
    found = {n: a for n, a in arrays.items() if not n.startswith(("saved.", "known."))}
    if {n: (a.shape, a.dtype) for n, a in found.items()} != shapes or any(
        a is None or a.ndim != 1 or a.dtype != np.uint8 for a in hashes
    ):
        raise CheckpointMismatch(
            f"{where} holds a state of other names, shapes or dtypes than this version of blindstep "
            "uses: resume it with the version that began it."
        )
    leaves = [jnp.asarray(found[name]) for name in template]
    names = Fingerprints.__annotations__
    known = {name: bytes(arrays[f"known.{name}"]).hex() for name in names}
    return Packed(
        state=jax.tree.unflatten(jax.tree.structure(like), leaves),
        keys=Keys(
            noise=jnp.asarray(arrays["key.noise"]),
            public=jax.random.wrap_key_data(jnp.asarray(arrays["key.public"]), impl="threefry2x32"),
            seeded=bool(arrays["key.seeded"]),
        ),
        known=Fingerprints(**known),
        saved={n.removeprefix("saved."): a for n, a in arrays.items() if n.startswith("saved.")},
    )


def _named(state: State) -> dict[str, jax.Array]:
    return {
        "state." + jax.tree_util.keystr(path, simple=True, separator="."): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(state)
    }
