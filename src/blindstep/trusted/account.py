"""What a ledger says: which runs used these people's records, and what each has spent.

The unit of charging is a *pass* of a run: every record takes part in at most one step of it, and
blocks hold disjoint records, so a pass costs mu_per_pass once, at its first step, however many of
its steps follow (`accounting.block_mu`). Everything composes on the same people:

    mu = sqrt(sum over runs, attempts and passes of mu_per_pass^2)

An *attempt* is a run under one noise key. A run needs one; a second one (the key was lost in a
crash) charges the passes it touches again. That covers any point it goes on from: a step's
contribution is then in the releases of both attempts, each within mu_per_pass, with independent
noise.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from blindstep.errors import InvalidArgument, count, finite, positive
from blindstep.trusted import accounting

SCHEMA = 1
# A run planned to spend a whole budget in several passes meets it only up to rounding.
ROUNDING = 1e-12


@dataclass(frozen=True)
class RunIdentity:
    """Which run this is. Everything is public: the key is named by its hash.

    Attributes:
        run: the run's name in this ledger.
        plan: fingerprint of its plan (`sealed_json.fingerprint(plan.to_dict())`).
        data: name of its data that tells nothing about them (`ledger.data_id`).
        noise_key: fingerprint of its noise key (`ledger.noise_key_id`).
        mu_per_pass: what one pass costs (`Oracle.mu_per_pass`).
        steps_per_pass: releases in one pass (blocks x period).
        passes: times the run goes through the records.
    """

    run: str
    plan: str
    data: str
    noise_key: str
    mu_per_pass: float
    steps_per_pass: int
    passes: int

    def __post_init__(self) -> None:
        for name in ("run", "plan", "data", "noise_key"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise InvalidArgument(f"{name} must be a string, not empty, got {value!r}.")
        object.__setattr__(self, "mu_per_pass", positive("mu_per_pass", self.mu_per_pass))
        object.__setattr__(self, "steps_per_pass", count("steps_per_pass", self.steps_per_pass))
        object.__setattr__(self, "passes", count("passes", self.passes))

    @property
    def steps(self) -> int:
        """Releases in the whole run."""
        return self.steps_per_pass * self.passes

    def passes_of(self, first: int, number: int) -> range:
        """The passes that steps first .. first + number - 1 belong to."""
        return range(first // self.steps_per_pass, (first + number - 1) // self.steps_per_pass + 1)

    def changed_from(self, earlier: RunIdentity) -> list[str]:
        """Names of what differs, the noise key apart."""
        mine, theirs = asdict(self), asdict(earlier)
        return [name for name in mine if name != "noise_key" and mine[name] != theirs[name]]


@dataclass
class Attempt:
    """A run under one noise key: steps start .. stop - 1 may have been seen.

    Attributes:
        noise_key: fingerprint of the key.
        start: first step begun; None before any.
        stop: the next step that was never begun under this key.
        charges: mu of each pass it touched.
        replayed: steps that were begun again, bit for bit, free of charge.
        answers: of steps whose answers came from outside, the name of these answers
            (`ledger.answers_id`).
    """

    noise_key: str
    start: int | None = None
    stop: int = 0
    charges: dict[int, float] = field(default_factory=dict)
    replayed: int = 0
    answers: dict[int, str] = field(default_factory=dict)

    @property
    def begun(self) -> range:
        """The steps that may have been seen under this key."""
        return range(self.start or 0, self.stop)

    def again(self, first: int, number: int) -> range:
        """Those of steps first .. first + number - 1 that were begun under this key before."""
        return range(max(first, self.begun.start), min(first + number, self.stop))


@dataclass
class RunAccount:
    """One run: who it is, since when, and its attempts."""

    identity: RunIdentity
    since: str
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def next_step(self) -> int:
        """The first step that was never begun: all before it may have been seen."""
        return max((attempt.stop for attempt in self.attempts), default=0)

    @property
    def charges(self) -> list[float]:
        """Mu of every charge."""
        return [mu for attempt in self.attempts for mu in attempt.charges.values()]

    def attempt(self, noise_key: str) -> int | None:
        """The number of the attempt under this key."""
        keys = [attempt.noise_key for attempt in self.attempts]
        return keys.index(noise_key) if noise_key in keys else None


class Account:
    """The state that a ledger's entries add up to. `apply` is the only way it changes."""

    def __init__(self) -> None:
        self.records: str | None = None
        self.budget: float | None = None
        self.runs: dict[str, RunAccount] = {}

    def spent(self, run: str | None = None) -> float:
        """Mu of everything charged to these records, or of one run: sqrt(sum of squares).

        Guarantee: whatever was released is in it. `accounting.epsilon(mu, delta)` converts it.
        """
        if run is None:
            return accounting.compose(mu for each in self.runs.values() for mu in each.charges)
        if run not in self.runs:
            raise InvalidArgument(f"no run {run!r} in this ledger: it holds {sorted(self.runs)}.")
        return accounting.compose(self.runs[run].charges)

    def remaining(self) -> float:
        """The largest mu that may still be charged; infinity without a budget."""
        if self.budget is None:
            return math.inf
        spent = self.spent()
        return math.sqrt(max(0.0, (self.budget - spent) * (self.budget + spent)))

    def would_exceed(self, mu: float) -> bool:
        """Whether spending `mu` more (a pass, or a whole run: `Oracle.mu`) breaks the budget.

        Exact up to a relative 1e-12 of the budget, the slack that `Plan.build` has.
        """
        if self.budget is None:
            return False
        return accounting.compose([self.spent(), finite("mu", mu)]) > self.budget * (1 + ROUNDING)

    def apply(self, entry: dict[str, Any]) -> None:
        """Take an entry into account. One that makes no sense here is a ValueError or KeyError."""
        kind, at = entry["kind"], _text(entry, "at")
        if (kind == "ledger") != (self.records is None):
            raise ValueError("a ledger has one first entry, which names its records")
        if kind == "ledger":
            if entry["schema"] != SCHEMA:
                raise ValueError(
                    f"it is of schema {entry['schema']!r}, and this version of blindstep reads "
                    f"schema {SCHEMA}: use the version that wrote it"
                )
            self.records = _text(entry, "records")
        elif kind == "budget":
            self.budget = positive("budget", entry["mu"])
        elif kind == "run":
            identity = RunIdentity(**{name: entry[name] for name in RunIdentity.__annotations__})
            run = self.runs.setdefault(identity.run, RunAccount(identity, at))
            if identity.changed_from(run.identity) or run.attempt(identity.noise_key) is not None:
                raise ValueError(f"run {identity.run!r} is registered twice")
            run.attempts.append(Attempt(identity.noise_key))
        elif kind == "intent":
            self._apply_intent(entry)
        else:
            raise ValueError(f"{kind!r} is no kind of entry")

    def _apply_intent(self, entry: dict[str, Any]) -> None:
        run = self.runs[entry["run"]]
        attempt = run.attempts[count("attempt", entry["attempt"], 0)]
        first, number = count("first", entry["first"], 0), count("count", entry["count"])
        after, new = first + number, dict(entry["charges"])
        begun = range(first, first + 1) if attempt.start is None else attempt.begun
        if not begun.start <= first <= begun.stop or after > run.identity.steps:
            raise ValueError("its steps do not follow those before it")
        if any(mu != run.identity.mu_per_pass for mu in new.values()) or (
            not new.keys().isdisjoint(attempt.charges)
        ):
            raise ValueError("its charge is not that of its run")
        attempt.charges.update(new)
        if any(index not in attempt.charges for index in run.identity.passes_of(first, number)):
            raise ValueError("it begins a pass that it does not charge")
        again, answers = attempt.again(first, number), entry.get("answers")
        if again and attempt.answers.get(first) != answers:
            raise ValueError("it repeats a step with other answers")
        if answers is not None:
            attempt.answers[first] = answers
        attempt.replayed += len(again)
        attempt.start, attempt.stop = begun.start, max(attempt.stop, after)


def _text(entry: dict[str, Any], name: str) -> str:
    if not isinstance(entry[name], str):
        raise ValueError(f"its {name!r} is no text")
    return entry[name]
