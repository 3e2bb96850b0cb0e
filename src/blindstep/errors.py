"""Errors that say what is wrong, with which value, and what to do about it.

    try:
        bs.minimize(loss, params, data, bs.Privacy(epsilon=-1))
    except bs.errors.InvalidArgument as error:
        print(error)  # epsilon must be a positive number, got -1.

Every check here looks at public configuration only. No function of this package puts a loss value
or a record into a message.

Why a ledger or a checkpoint refuses to go on: one class for each remedy.

Every message names the file and says what to do. The ledger holds every release that was made before
any of these is raised: a refusal can cost a run, never a person's privacy.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import math
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar, dataclass_transform

_Arguments = ParamSpec("_Arguments")
_Answer = TypeVar("_Answer")
_Record = TypeVar("_Record", bound=type)


_Kind = TypeVar("_Kind", bound=type)


class BlindstepError(Exception):
    """Base class of every error this package raises on purpose."""


class InvalidArgument(BlindstepError, ValueError):
    """A value of the public configuration that no run can use."""


class VacuousPlan(BlindstepError):
    """The theorem promises nothing at this size: its bound is no better than the Lipschitz bound."""


class HorizonExceeded(BlindstepError):
    """More releases were asked for than the noise was calibrated for."""


class NoEntropy(BlindstepError):
    """The operating system gave no randomness; nothing may be released."""


class SecretCopied(BlindstepError, TypeError):
    """Something that holds a noise key was to be copied or pickled."""


class LargeDelta(UserWarning):
    """A budget's delta is above 0.1 / records: it allows to publish a record one time in ten."""


class HopelessPlan(UserWarning):
    """A plan whose noise drowns whatever the records say, or whose steps lead nowhere."""


class LossNotFinite(UserWarning):
    """The loss was not finite for any made-up record: it may count 0 for everybody."""


class ClassesFromData(UserWarning):
    """A classifier was fitted without `classes`: the labels that occur in `y` are public then."""


class RunsInEvaluationMode(UserWarning):
    """A model with layers that behave differently in training: they run as in evaluation."""


class IgnoredArguments(UserWarning):
    """Training arguments that a private run finds itself, or has no use for."""


# Frames between a call and what warns that are nobody's line: ours, and those of decorators.
_NOT_A_CALLER = ("blindstep", "beartype", "jaxtyping", "contextlib")


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line that called this package, which its owner can change; not at one of ours.

    Python shows a warning once for a line and its words, so a call in which plan, driver and ledger all
    look at the same budget tells it once.
    """
    level, frame = 2, sys._getframe(1)
    while frame is not None and _root(frame.f_globals) in _NOT_A_CALLER:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def _root(names: dict[str, Any]) -> str:
    return str(names.get("__name__", "")).partition(".")[0]


def positive(name: str, value: object, remedy: str = "give a finite number above 0") -> float:
    """Return `value` as a float, or raise: it must be a finite real number above zero."""
    number = finite(name, value, remedy)
    if number <= 0:
        raise InvalidArgument(f"{name} must be above 0, got {value!r}: {remedy}.")
    return number


def finite(name: str, value: object, remedy: str = "give a finite number") -> float:
    """Return `value` as a float, or raise: it must be a finite real number."""
    number = math.nan
    if isinstance(value, Real) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):  # an integer past all floats
            number = float(value)
    if not math.isfinite(number):
        raise InvalidArgument(f"{name} must be a finite number, got {value!r}: {remedy}.")
    return number


def count(name: str, value: object, least: int = 1) -> int:
    """Return `value` as an int, or raise: a whole number of at least `least`, within 64 bits."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # such as 1e6
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise InvalidArgument(
            f"{name} must be a whole number of at least {least}, got {value!r}: give an integer."
        )
    if int(value) >= 2**63:
        raise InvalidArgument(
            f"{name} must be below 2^63, got one of {int(value).bit_length()} bits: give less."
        )
    return int(value)


def probability(name: str, value: object) -> float:
    """Return `value` as a float, or raise: it must lie strictly between 0 and 1."""
    number = positive(name, value, "give a probability such as 1e-5")
    if number >= 1:
        raise InvalidArgument(
            f"{name} must be below 1, got {value!r}: choose it well below 1 / records, such as 1e-5."
        )
    return number


def fraction(name: str, value: object) -> float:
    """Return `value` as a float, or raise: it must be at least 0 and below 1."""
    number = finite(name, value, "give one of at least 0 and below 1")
    if not 0.0 <= number < 1.0:
        raise InvalidArgument(f"{name} must be at least 0 and below 1, got {value!r}: give less.")
    return number


def answers_typos(
    function: Callable[_Arguments, _Answer], instead: Mapping[str, str] = MappingProxyType({})
) -> Callable[_Arguments, _Answer]:
    """The same function, which answers an argument that it does not have with the nearest name.

    Or with what to do `instead`, for an argument that others have.
    """
    called = function.__qualname__.removesuffix(".__init__")
    names = [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]

    @functools.wraps(function)
    def answering(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Answer:
        for name in kwargs:
            if name not in names:
                near = difflib.get_close_matches(name, names, n=1)
                remedy = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(names)}."
                if "privacy" in names and name in ("epsilon", "delta", "mu"):
                    remedy = "give privacy=Privacy(epsilon=1, delta=1e-5), a budget."
                remedy = instead.get(name, remedy)
                raise InvalidArgument(f"{called}() has no argument {name!r}: {remedy}")
        return function(*args, **kwargs)

    return answering


@dataclass_transform(frozen_default=True)
def typed_record(cls: _Record) -> _Record:
    """A frozen dataclass that answers an argument that it does not have with the nearest name."""
    made: Any = dataclass(frozen=True)(cls)
    made.__init__ = answers_typos(made.__init__)
    return made


class Names(dict[str, _Kind]):
    """Classes by their `name`: those of this package, and those of anyone who derives one."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what  # what messages call one of them

    def add(self, cls: _Kind) -> None:
        """Take a class that has a `name` of its own; another class of that name is refused."""
        name = vars(cls).get("name")
        if not isinstance(name, str):
            return
        there = self.get(name, cls)
        if (there.__module__, there.__qualname__) != (cls.__module__, cls.__qualname__):
            raise InvalidArgument(
                f"there is a {self.what} {name!r} already, {there.__module__}.{there.__qualname__}: "
                f"give {cls.__qualname__} another name."
            )
        self[name] = cls

    def find(self, name: object) -> _Kind:
        """The class of this name."""
        if not isinstance(name, str) or name not in self:
            raise InvalidArgument(
                f"no {self.what} {name!r}: there are {', '.join(self)}. For one of your own, import "
                "the module that defines it first."
            )
        return self[name]


class EngineLost(BlindstepError):
    """The workers cannot be reached any more. The step was not released and can be repeated."""


class LossFailed(BlindstepError):
    """The loss raised inside the compiled program. The steps it was computing are not released."""


class FolderChanged(BlindstepError):
    """A folder that was handed over is not as it was listed or signed."""


class StorageError(BlindstepError):
    """A ledger or a checkpoint that cannot be used as it stands."""


class ProcessLost(StorageError):
    """Another process of a run over `jax.distributed` has stopped, or is not reached any more."""


class LedgerError(StorageError):
    """The ledger refuses; nothing may be released."""


class LedgerUnwritable(LedgerError):
    """The disk did not take an entry (full, read-only, failing): its release must not happen."""


class LedgerUnreadable(LedgerError):
    """The ledger's file is missing, or this user may not read it."""


class LedgerBusy(LedgerError):
    """Another process, or another object in this process, is writing to this ledger."""


class LedgerDamaged(LedgerError):
    """An entry is not what was written: flipped bits, or a missing, doubled or foreign line."""


class LedgerTruncated(LedgerError):
    """The ledger holds fewer entries than a checkpoint has seen in it."""


class LedgerMismatch(LedgerError):
    """The wrong ledger, or the wrong plan or data for a run that is in it."""


class RecordsConsumed(LedgerError):
    """These steps were begun before: their records are used up in this pass."""


class NoiseReused(LedgerError):
    """Another run already used this noise key: the two releases would cancel the noise."""


class BudgetExceeded(LedgerError):
    """The charge would spend more than these people's budget."""


class CheckpointError(StorageError):
    """The checkpoint refuses."""


class CheckpointUnwritable(CheckpointError):
    """The disk did not take the checkpoint; the one before it is untouched."""


class CheckpointDamaged(CheckpointError):
    """A checkpoint file is missing or is not what was written.

    Attributes:
        previous_position: position of the checkpoint before it, if that one is whole; else None.
    """

    previous_position: int | None = None


class CheckpointMismatch(CheckpointError):
    """A whole checkpoint, but of another run, plan or data set."""
