"""Where a run is kept, how often it is saved, and `plan.json`, its plan for people to read.

A checkpoint holds the fingerprint of that plan.

All processes of a run must agree on what it depends on before it begins (`agree`), and process 0 hands
the others its state (`share`). Noise is a function of the key and of the number of a release: two
processes that released different values under one key would give away the difference in the clear.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from blindstep.errors import (
    BudgetExceeded,
    CheckpointDamaged,
    CheckpointMismatch,
    CheckpointUnwritable,
    InvalidArgument,
)
from blindstep.ledger import files, fingerprints
from blindstep.ledger.account import Account
from blindstep.ledger.budget import Privacy
from blindstep.ledger.checkpoint import CURRENT, Arrays
from blindstep.ledger.fingerprints import Fingerprints
from blindstep.ledger.ledger import read_ledger, require_lowered
from blindstep.private.gate import Memory
from blindstep.private.noise import Keys, NoiseKey, public_key
from blindstep.processes.jax_group import JaxGroup

LEDGER = "ledger.jsonl"
PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Storage:
    """Where a run is kept. With nothing given the run is kept nowhere, and the storage is false."""

    directory: PathLike | None = None  # the run directory; made if it does not exist
    ledger: PathLike | None = None  # one that runs on the same people share; None: in `directory`
    budget: Privacy | None = None  # of all runs in the ledger together; None: what the ledger says
    cohort: str | None = None  # what a ledger begun here calls its people; None: as the directory

    def __post_init__(self) -> None:
        for name, path in (("checkpoint", self.directory), ("ledger", self.ledger)):
            if not isinstance(path, str | os.PathLike | None):
                raise InvalidArgument(f"{name} must be a path, such as 'run', got {path!r}.")
        if not isinstance(self.budget, Privacy | None):
            raise InvalidArgument(
                f"budget must be a Privacy, such as Privacy(epsilon=4), got {self.budget!r}."
            )
        if self.budget is not None and not self:
            raise InvalidArgument("a budget is kept in a ledger: give checkpoint or ledger too.")

    def __bool__(self) -> bool:
        return self.directory is not None or self.ledger is not None

    @property
    def ledger_path(self) -> str:
        """The ledger's path."""
        return os.path.abspath(self.ledger_as_given)

    @property
    def ledger_as_given(self) -> str:
        """The ledger's path, relative if it was given so: the same in processes that work elsewhere."""
        return os.fspath(self.ledger or os.path.join(self.directory or "", LEDGER))

    @property
    def begun(self) -> bool:
        """Whether the run directory holds a run, or a part of one (`part`), or of several."""
        if self.directory is None:
            return False
        patterns = (CURRENT, f"*/{CURRENT}", f"*/*/{CURRENT}")
        return any(True for pattern in patterns for _ in Path(self.directory).glob(pattern))

    def part(self, folder: str) -> Storage:
        """Where a part of the run is kept: in a folder of its directory, and in the same ledger."""
        if not self:
            return self
        inside = None if self.directory is None else os.path.join(self.directory, folder)
        return Storage(inside, self.ledger_as_given, self.budget, self.cohort or self.run_label)

    @property
    def run_label(self) -> str:
        """What people will recognise the run by: its directory's name. It tells nothing of the data."""
        return os.path.basename(os.path.abspath(self.directory or "run")) or "run"


class SavingInterval:
    """Says when the next save is due: all saves together take a twentieth of the time at most.

    Work that was not saved is done again after a crash: the interval costs time, never privacy.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._began = clock, clock()
        self._spent, self._last = 0.0, 0.0

    def due(self) -> bool:
        """Whether another save, as long as the last one, stays within the share."""
        return self._spent + self._last <= 0.05 * (self._clock() - self._began)

    def measure(self, save: Callable[[], None]) -> None:
        """Save, and remember how long it took."""
        began = self._clock()
        save()
        self._last = self._clock() - began
        self._spent += self._last


PLAN = "plan.json"


def read(path: str) -> dict[str, Any]:
    """The JSON object in a plan file. Anything else is an OSError or a ValueError."""
    plan = files.parse(files.read_file(path).decode())
    if not isinstance(plan, dict):
        raise ValueError("it is no JSON object")
    return plan


def check(directory: str, plan: dict[str, Any], *, resuming: bool) -> None:
    """Refuse a directory that holds another plan, or a plan but nothing to resume."""
    path = os.path.join(directory, PLAN)
    if not os.path.lexists(path):
        return
    if not resuming:
        raise CheckpointDamaged(
            f"{path} is of a run whose checkpoint is gone: restore the directory from a copy, or "
            "give another one for a new run. The ledger keeps what this one spent."
        )
    try:
        written = read(path)
        found = fingerprints.of_plan(written)
    except (OSError, ValueError) as error:
        raise CheckpointDamaged(
            f"{path} is not as it was written ({error}): delete it. It is a copy for people, and is "
            "written anew."
        ) from error
    if found != fingerprints.of_plan(plan):
        others = [name for name in _others(written, plan) if name != "notes"]
        raise CheckpointMismatch(
            f"{path} is another plan than the one given, with another {', '.join(others[:3])}: resume "
            "with the plan it was made with, or give another directory for a new run."
        )


def _others(one: dict[str, Any], two: dict[str, Any]) -> list[str]:
    """The names of what differs, in a part of both by the part and its own name."""
    names: list[str] = []
    for name in {**two, **one}:
        left, right = one.get(name), two.get(name)
        if isinstance(left, dict) and isinstance(right, dict):
            names += [f"{name}.{each}" for each in _others(left, right)]
        elif left != right:
            names.append(name)
    return names


def write(directory: str, plan: dict[str, Any]) -> None:
    """Write the plan, whole or not at all, if there is none yet."""
    path = os.path.join(directory, PLAN)
    if not os.path.lexists(path):
        put(path, json.dumps(plan, indent=2, allow_nan=False) + "\n")


def put(path: str, text: str) -> None:
    """Write a file of a run directory that explains it, whole or not at all."""
    try:
        files.put_file(path, text.encode())
    except OSError as error:
        raise CheckpointUnwritable(
            f"{path} cannot be written ({error.strerror}), so nothing was released: free some space "
            "or make the directory writable."
        ) from error


def account_at(storage: Storage) -> Account:
    """What the ledger of a storage says, with the storage's budget as its own. Changes nothing."""
    path, budget = storage.ledger_path, storage.budget
    there = os.path.exists(path) and os.path.getsize(path) > 0
    account = read_ledger(path) if there else Account()
    if budget is not None:
        require_lowered(account, budget.mu, path)
        account.budget, account.made_from = budget.mu, budget
    return account


def require_room(
    storage: Storage, mu: float, group: JaxGroup | None = None, *, secrecy: float = 0.0
) -> None:
    """Refuse a run of several parts that does not fit into the budget as a whole, before it begins.

    One that has begun is not asked again: what it has spent is in the ledger already. Of several
    processes, process 0 looks into the ledger.
    """

    def look() -> None:
        account = account_at(storage) if storage and not storage.begun else Account()
        if account.would_exceed(mu, secrecy):
            raise BudgetExceeded(
                f"{storage.ledger_path}: this run asks for mu = {mu:g} in all, but of the budget "
                f"{account.budget:g} only {account.remaining():g} is left ({account.spent():g} "
                "spent): nothing was released. Ask for a smaller epsilon."
            )

    (group or JaxGroup()).led("room", look)


def agree(
    group: JaxGroup, known: Fingerprints, plan: str, unit: str, storage: Storage, seed: int | None
) -> Fingerprints:
    """Raise the same refusal in all processes unless they were given the same; `plan` is its hash.

    Gives the fingerprints with the environments of all processes as one: hosts may differ, but each
    must be again what it was when releases are repeated.
    """
    places = [path and os.fspath(path) for path in (storage.directory, storage.ledger)]
    budget = None if storage.budget is None else asdict(storage.budget)
    group.require_alike(
        {
            "plan": plan,
            "params": known.params,
            "loss": known.loss,
            "data": known.data,
            "people or rows": unit,
            "checkpoint, ledger or budget": json.dumps([*places, budget]),
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


def share(group: JaxGroup, own: RunSnapshot, keys: Keys | None) -> tuple[RunSnapshot, Keys]:
    """Where process 0 stands, and its keys, in all processes, bit for bit. They stay in memory.

    The others have no keys yet, and a state and memory of the same structure and shapes.
    """
    saved = own.saved

    def described() -> list[Any]:
        assert keys is not None
        return [own.position, keys.seeded, {n: (a.shape, a.dtype.str) for n, a in saved.items()}]

    position, seeded, like = group.led("snapshot", described)
    if not group.leads:
        saved = {name: np.zeros(shape, dtype) for name, (shape, dtype) in like.items()}
    words = [np.zeros(8, np.uint32), np.zeros(2, np.uint32)]
    if keys is not None:
        words = [keys.noise.words(), np.asarray(jax.random.key_data(keys.public))]
    leaves, structure = jax.tree.flatten((own.state, own.memory))
    noise, public, *rest = group.share("state", [*words, *map(np.asarray, leaves), *saved.values()])
    state, memory = structure.unflatten(map(jnp.asarray, rest[: len(leaves)]))
    saved = dict(zip(saved, rest[len(leaves) :], strict=True))
    snapshot = RunSnapshot(state, memory, position, saved)
    return snapshot, Keys(NoiseKey(noise), public_key(public), seeded)
