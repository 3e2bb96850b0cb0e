"""What a ledger says: which runs used these people's records, and what each run has spent.

The unit of charging is a *pass* of a run. Within a pass every record takes part in at most one step,
and blocks hold disjoint records, so a pass costs mu_per_pass once, at its first step, however many of
its steps follow (`private.terms`). Everything composes on the same people:

    mu = sqrt(sum over runs, attempts and passes of mu_per_pass^2)

which is true of mus about the same *unit* and the same *neighbours*. A record and a person with several
rows are not the same, nor are a record that is replaced and one that is left out, so a ledger holds
runs about one of them. Secret batches cost a secrecy beside mu; secrecies add up, and what they add up
to is taken off delta: of a budget in epsilon and delta, less mu is then left (`Account.limit`).

An *attempt* is a run under one noise key. A run needs one. A second attempt (the key was lost in a
crash) charges the passes that it touches again, wherever it goes on: a step's contribution is then in
the releases of both attempts, each within mu_per_pass, with independent noise.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from blindstep import errors
from blindstep.errors import InvalidArgument, finite, positive, probability
from blindstep.ledger.budget import Privacy
from blindstep.private import accounting
from blindstep.private.accounting import RECORD
from blindstep.private.terms import PRESENCES, REPLACE, Terms

# 4 added secrecy_per_pass and neighbours, without which a run has public batches and "replace"; and
# what a budget in mu was made from, without which it is about mu alone.
SCHEMA, _SCHEMAS = 4, (3, 4)
_ADDED = {"neighbours", "secrecy_per_pass"}
# A run planned to spend a whole budget in several passes meets it only up to rounding.
ROUNDING = 1e-12


@dataclass(frozen=True)
class RunIdentity:
    """Which run this is, and what it costs. Every field is public: secrets have names in it."""

    run: str  # its name in this ledger
    plan: str  # fingerprint of its plan (`fingerprints.of_plan`)
    data: str  # a name of its data that tells nothing about them (`fingerprints.data_id`)
    noise_key: str  # the name of its noise key in this ledger (`Ledger.name_of`)
    mu_per_pass: float  # what one pass costs (`Terms.mu_per_pass`)
    steps_per_pass: int  # releases in one pass
    passes: int  # how often the run goes through the records
    delta: float  # where its epsilon is quoted
    unit: str = RECORD  # what its mu is about (`Statement.unit`); parentheses explain it
    neighbours: str = REPLACE  # which change of a unit (`Terms.neighbours`)
    secrecy_per_pass: float = 0.0  # what a pass of secret batches costs beside its mu

    @classmethod
    def of(cls, terms: Terms, **names: Any) -> RunIdentity:
        """The run with these terms; `names` are the other fields."""
        return cls(
            mu_per_pass=terms.mu_per_pass(),
            steps_per_pass=terms.schedule.releases_per_pass,
            passes=terms.schedule.passes,
            neighbours=terms.neighbours,
            secrecy_per_pass=terms.secrecy_per_pass(),
            **names,
        )

    def __post_init__(self) -> None:
        for name in ("run", "plan", "data", "noise_key", "unit"):
            if not isinstance(value := getattr(self, name), str) or not value:
                raise InvalidArgument(f"{name} must be a string, not empty, got {value!r}.")
        object.__setattr__(self, "mu_per_pass", positive("mu_per_pass", self.mu_per_pass))
        for name in ("steps_per_pass", "passes"):
            object.__setattr__(self, name, errors.count(name, getattr(self, name)))
        object.__setattr__(self, "delta", probability("delta", self.delta))
        if self.neighbours not in PRESENCES:
            raise InvalidArgument(f"neighbours: {self.neighbours!r} is none of {list(PRESENCES)}.")
        if not 0.0 <= finite("secrecy_per_pass", self.secrecy_per_pass) < 1.0:
            raise InvalidArgument(f"secrecy_per_pass: {self.secrecy_per_pass:g} is no probability.")

    @property
    def steps(self) -> int:
        """Releases in the whole run."""
        return self.steps_per_pass * self.passes

    @property
    def protects(self) -> str:
        """The unit without what explains it: mus about the same one add up, others do not."""
        unit = self.unit.partition(" (")[0]
        return unit if self.neighbours == REPLACE else f"{unit} ({self.neighbours})"

    def passes_of(self, first: int, count: int) -> range:
        """The passes that steps first .. first + count - 1 belong to."""
        return range(first // self.steps_per_pass, (first + count - 1) // self.steps_per_pass + 1)

    def changed_from(self, earlier: RunIdentity) -> list[str]:
        """The fields that differ, in words, apart from the noise key."""
        now, was = asdict(self), asdict(earlier)
        others = [name for name in now if name != "noise_key" and now[name] != was[name]]
        return [f"{name} ({was[name]!r}, now {now[name]!r})" for name in others]


@dataclass
class Attempt:
    """A run under one noise key: steps start .. stop - 1 may have been seen."""

    noise_key: str  # the key's name in this ledger
    start: int | None = None  # the first step begun; None before any
    stop: int = 0  # the next step that was never begun under this key
    charges: dict[int, float] = field(default_factory=dict)  # mu of each pass that it touched
    replayed: int = 0  # how many steps were begun again, bit for bit, free of charge
    # For steps whose answers came from outside, the name of these answers (`fingerprints.answers_id`).
    answers: dict[int, str] = field(default_factory=dict)

    @property
    def begun(self) -> range:
        """The steps that may have been seen under this key."""
        return range(self.start or 0, self.stop)

    def again(self, first: int, count: int) -> range:
        """Those of steps first .. first + count - 1 that were begun under this key before."""
        return range(max(first, self.begun.start), min(first + count, self.stop))


@dataclass
class RunAccount:
    """One run of a ledger: who it is, the day it was registered, and its attempts."""

    identity: RunIdentity
    since: str
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def next_step(self) -> int:
        """The first step that was never begun: all steps before it may have been seen."""
        return max((attempt.stop for attempt in self.attempts), default=0)

    @property
    def charges(self) -> list[float]:
        """Mu of every charge."""
        return [mu for attempt in self.attempts for mu in attempt.charges.values()]

    def attempt(self, noise_key: str) -> int | None:
        """The number of the attempt under the key of this name; None if there is none."""
        keys = [attempt.noise_key for attempt in self.attempts]
        return keys.index(noise_key) if noise_key in keys else None


@dataclass
class Account:
    """The state that a ledger's entries add up to. `apply` is the only way it changes."""

    cohort: str | None = None  # what the ledger calls its people; None before the first entry
    id: str = ""  # the ledger's own random number, in hexadecimal; "" before the first entry
    budget: float | None = None  # the largest mu that all runs together may spend; None: no limit
    made_from: Privacy | None = None  # the budget itself; None where its mu alone is known
    runs: dict[str, RunAccount] = field(default_factory=dict)  # by name

    def spent(self, run: str | None = None) -> float:
        """Mu of everything charged to these people, or of one run: sqrt(sum of squares).

        Guarantee: whatever was released is in it. `epsilon` converts it.
        """
        return accounting.compose(mu for each in self._about(run) for mu in each.charges)

    def secrecy(self, run: str | None = None) -> float:
        """What secret batches cost beside `spent`: secrecies of passes add up."""
        return sum(len(each.charges) * each.identity.secrecy_per_pass for each in self._about(run))

    def epsilon(self, delta: float, run: str | None = None) -> float:
        """The epsilon at delta of everything charged, or of one run; 0 if nothing was."""
        mu = self.spent(run)
        return accounting.epsilon(mu, delta, secrecy=self.secrecy(run)) if mu > 0 else 0.0

    def _about(self, run: str | None) -> list[RunAccount]:
        if run is None:
            return list(self.runs.values())
        if run not in self.runs:
            raise InvalidArgument(f"no run {run!r} in this ledger: it holds {sorted(self.runs)}.")
        return [self.runs[run]]

    @property
    def unit(self) -> str | None:
        """What all its mus are about; None before the first run."""
        return next((run.identity.protects for run in self.runs.values()), None)

    def limit(self, secrecy: float = 0.0) -> float:
        """The largest mu that all runs may spend, if secret batches cost so much more secrecy.

        Of a budget in epsilon and delta, what secrecies add up to is taken off delta. A budget in mu is
        about mu, and its delta only says how much secrecy may come beside it: a quarter, above which
        no epsilon is quoted at that delta. Infinity without a budget.

        Guarantee: what spends at most this mu and that secrecy meets the budget.
        """
        secrecy, made = secrecy + self.secrecy(), self.made_from
        if self.budget is None:
            return math.inf
        if made is None or not secrecy:
            return self.budget
        if secrecy > made.delta / 4:
            return 0.0
        if not made.spends_delta:
            return self.budget
        return min(self.budget, accounting.mu_for_epsilon(made.epsilon, made.delta - secrecy))

    def remaining(self) -> float:
        """The largest mu that may still be charged; infinity without a budget."""
        spent, limit = self.spent(), self.limit()
        return math.sqrt(max(0.0, (limit - spent) * (limit + spent)))

    def would_exceed(self, mu: float, secrecy: float = 0.0) -> bool:
        """Whether this much more, for a pass or a whole run, breaks the budget by over 1e-12 of it."""
        more = accounting.compose([self.spent(), finite("mu", mu)])
        return more > self.limit(secrecy) * (1 + ROUNDING)

    def apply(self, entry: dict[str, Any]) -> None:
        """Take an entry into account. One that makes no sense here is a ValueError or KeyError."""
        kind, at = entry["kind"], _text(entry, "at")
        if (kind == "ledger") != (self.cohort is None):
            raise ValueError("a ledger has one first entry, which names its cohort")
        if kind == "ledger":
            if entry["schema"] not in _SCHEMAS:
                raise ValueError(
                    f"it is of schema {entry['schema']!r}, and this version of blindstep reads "
                    f"schema {SCHEMA}: use the version that wrote it"
                )
            self.id, self.cohort = _text(entry, "id"), _text(entry, "cohort")
        elif kind == "budget":
            self.budget = positive("budget", entry["mu"])
            self.made_from = _budget(entry)
        elif kind == "run":
            names = RunIdentity.__annotations__.keys() - (_ADDED - entry.keys())
            identity = RunIdentity(**{name: entry[name] for name in names})
            if self.unit not in (None, identity.protects):
                raise ValueError(f"run {identity.run!r} is about another unit than those before it")
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
        attempt = run.attempts[errors.count("attempt", entry["attempt"], 0)]
        first = errors.count("first", entry["first"], 0)
        count = errors.count("count", entry["count"])
        after, new = first + count, dict(entry["charges"])
        begun = range(first, first + 1) if attempt.start is None else attempt.begun
        if not begun.start <= first <= begun.stop or after > run.identity.steps:
            raise ValueError("its steps do not follow those before it")
        if any(mu != run.identity.mu_per_pass for mu in new.values()) or (
            not new.keys().isdisjoint(attempt.charges)
        ):
            raise ValueError("its charge is not that of its run")
        attempt.charges.update(new)
        if any(index not in attempt.charges for index in run.identity.passes_of(first, count)):
            raise ValueError("it begins a pass that it does not charge")
        again, answers = attempt.again(first, count), entry.get("answers")
        if any(attempt.answers.get(step) != answers for step in again):
            raise ValueError("it repeats a step with other answers")
        if answers is not None:
            attempt.answers[first] = answers
        attempt.replayed += len(again)
        attempt.start, attempt.stop = begun.start, max(attempt.stop, after)


def _budget(entry: dict[str, Any]) -> Privacy | None:
    """The budget of an entry, if it says what its mu was made from."""
    if "neighbours" not in entry:
        return None
    given = {"mu": entry["mu"]} if entry["epsilon"] is None else {"epsilon": entry["epsilon"]}
    made = Privacy(**given, delta=entry["delta"], neighbours=entry["neighbours"])
    if not math.isclose(made.mu, entry["mu"], rel_tol=1e-6):  # another machine may round otherwise
        raise ValueError("its mu is not that of its epsilon and delta")
    return made


def _text(entry: dict[str, Any], name: str) -> str:
    if not isinstance(entry[name], str):
        raise ValueError(f"its {name!r} is no text")
    return entry[name]
