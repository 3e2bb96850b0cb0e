"""What all processes of a run must agree on before it begins, and what process 0 hands to the others.

Noise is a function of the key and of the number of a release. So two processes that release other
values under one key would give away how these differ, in the clear. Whatever a release depends on is
therefore compared first.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from blindstep.ledger.checkpoint import Arrays
from blindstep.ledger.fingerprints import Fingerprints
from blindstep.ledger.storage import Storage
from blindstep.private.gate import Memory
from blindstep.private.noise import Keys, NoiseKey, public_key
from blindstep.processes.jax_group import ProcessGroup


def agree(
    group: ProcessGroup,
    known: Fingerprints,
    plan: str,
    unit: str,
    storage: Storage,
    seed: int | None,
) -> Fingerprints:
    """Raise the same refusal in all processes unless they were given the same; `plan` is its hash.

    Gives the fingerprints with the environments of all processes as one: hosts may differ, but each
    must be again what it was when releases are repeated.
    """
    paths = [storage.directory, storage.ledger]
    files = [None if path is None else os.fspath(path) for path in paths]
    budget = None if storage.budget is None else storage.budget.mu
    group.require_alike(
        {
            "plan": plan,
            "params": known.params,
            "loss": known.loss,
            "data": known.data,
            "people or rows": unit,
            "checkpoint, ledger or budget": json.dumps([*files, budget]),
            "seed": str(seed),
        }
    )
    own = np.frombuffer(bytes.fromhex(known.environment), np.uint8)
    every = group.gather("environment", own).tobytes()
    return replace(known, environment=hashlib.sha256(every).hexdigest())


class RunSnapshot(NamedTuple):
    """Where a run stands, apart from its keys. Memory and saved arrays are secret."""

    state: PyTree  # the driver's state: any pytree of arrays
    memory: Memory  # the gate's memory
    position: int  # steps done
    saved: Arrays  # the driver's own arrays


def share(group: ProcessGroup, own: RunSnapshot, keys: Keys | None) -> tuple[RunSnapshot, Keys]:
    """Where process 0 stands, and its keys, in all processes, bit for bit. They stay in memory.

    The others have no keys yet, and a state and memory of the same structure and shapes.
    """
    saved = own.saved

    def told() -> list[Any]:
        assert keys is not None
        return [own.position, keys.seeded, {n: (a.shape, a.dtype.str) for n, a in saved.items()}]

    position, seeded, like = group.led("standing", told)
    if not group.leads:
        saved = {name: np.zeros(shape, dtype) for name, (shape, dtype) in like.items()}
    words = [np.zeros(8, np.uint32), np.zeros(2, np.uint32)]
    if keys is not None:
        words = [keys.noise.words(), np.asarray(jax.random.key_data(keys.public))]
    leaves, structure = jax.tree.flatten((own.state, own.memory))
    noise, public, *rest = group.share("state", [*words, *map(np.asarray, leaves), *saved.values()])
    state, memory = structure.unflatten(map(jnp.asarray, rest[: len(leaves)]))
    saved = dict(zip(saved, rest[len(leaves) :], strict=True))
    standing = RunSnapshot(state, memory, position, saved)
    return standing, Keys(NoiseKey(noise), public_key(public), seeded)
