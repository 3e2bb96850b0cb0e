"""Methods: what a user chooses about a run, as small frozen records that know how to plan it.

A method is one class in one file: its fields are the choices, with their types, checks and words, and
`plan` turns them and a `Problem` into a `Plan`. Signatures, command-line options and messages are made
from the fields. A method of your own is a subclass of `Method`, defined wherever you like:

    @typed_record
    class Mine(Method):
        name: ClassVar[str] = "mine"
        steps: int = 100

        def plan(self, problem: Problem) -> Plan:
            ...
"""

from __future__ import annotations

import abc
import functools
import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args, get_origin
from typing import get_type_hints as hints_of

from blindstep.errors import InvalidArgument, count
from blindstep.estimate.bounds import Bounds
from blindstep.estimate.directions import SAMPLERS
from blindstep.ledger.budget import Privacy
from blindstep.optimize.learners import Learner
from blindstep.planning.checks import check_privacy, moderate, moderate_bounds, one_of
from blindstep.private.mechanisms import MECHANISMS

if TYPE_CHECKING:
    from blindstep.planning.plan import Plan

# Types of fields, each with its check.
SamplerName = Annotated[str, SAMPLERS.find]
MechanismName = Annotated[str, MECHANISMS.find]
EstimateKind = Literal["values", "gradient"]
Oracle = Literal["variance-reduced", "naive"]


@dataclass(frozen=True)
class Problem:
    """What a method needs to know of the problem. All of it is public.

    Attributes:
        dim: number of parameters.
        records: number of records.
        privacy: the budget of everything.
        leaves: the sizes of the arrays that the parameters are made of, in their order.
        network: whether it is about a model in `blindstep.torch`.
        effort: tells how many evaluations of the loss are reasonable; None if nobody knows.
    """

    dim: int
    records: int
    privacy: Privacy
    leaves: tuple[int, ...] | None = None
    network: bool = False
    effort: Callable[[], int] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "dim", count("dim", self.dim))
        object.__setattr__(self, "records", count("records", self.records))
        check_privacy(self.privacy)


class Method(abc.ABC):
    """How a run is planned. Subclasses are frozen records whose fields are the choices."""

    name: ClassVar[str]

    def __post_init__(self) -> None:
        check_fields(self)

    @abc.abstractmethod
    def plan(self, problem: Problem) -> Plan:
        """The plan for a problem; raises `InvalidArgument` where there is none."""

    def trial(self, problem: Problem) -> Plan:
        """The plan while records are searched for: one that promises nothing is an answer, too."""
        return self.plan(problem)

    def enough(self, problem: Problem) -> int | None:
        """From about how many records on noise leaves the method all its steps; None: it cannot say."""
        return None

    def require_tolerance(self, tolerance: float) -> None:
        """Raise unless more records lead to this tolerance sooner or later."""
        raise InvalidArgument(
            f"method {self.name} certifies no tolerance, got tolerance={tolerance:g}: give records, or "
            "a method with lipschitz and gap, such as Tight."
        )

    def made(self, plan: Plan) -> bool:
        """Whether a run that goes on may keep this plan, which an earlier call of its made.

        True only where a plan depends on how fast the machine is: such a run keeps its own.
        """
        return False


@functools.lru_cache(maxsize=64)
def field_types(method: type) -> dict[str, Any]:
    """The type of each field of a method, without None."""
    hints = hints_of(method, include_extras=True)
    return {field.name: _without_none(hints[field.name]) for field in fields(method)}


def _without_none(hint: Any) -> Any:
    if get_origin(hint) in (types.UnionType, getattr(types, "Union", types.UnionType)) or (
        type(None) in get_args(hint) and get_origin(hint) is not Literal
    ):
        (hint,) = (each for each in get_args(hint) if each is not type(None))
    return hint


def check_fields(method: Any) -> None:
    """Check each field that was given by its type, and make numbers Python's own."""
    for name, kind in field_types(type(method)).items():
        value = getattr(method, name)
        if value is None and _may_be_none(type(method), name):
            continue
        if kind is int:
            object.__setattr__(method, name, count(name, value))
        elif kind is bool:
            if not isinstance(value, bool):
                raise InvalidArgument(f"{name} must be True or False, got {value!r}.")
        elif kind is float:
            object.__setattr__(method, name, moderate(name, value))
        elif get_origin(kind) is Literal:
            one_of(name, value, get_args(kind))
        elif get_origin(kind) is Annotated:
            get_args(kind)[1](value)
        elif kind is Bounds:
            moderate_bounds(value)
        elif kind is Learner and not isinstance(value, Learner):
            raise InvalidArgument(
                f"{name} must be a learner such as AdaptiveStep(), got {value!r}."
            )


@functools.lru_cache(maxsize=512)
def _may_be_none(method: type, name: str) -> bool:
    return type(None) in get_args(hints_of(method)[name])


@functools.lru_cache(maxsize=64)
def words_of(method: type) -> dict[str, str]:
    """What the docstrings of a method say about each field: `name: words`, under "Attributes:"."""
    said: dict[str, str] = {}
    for each in reversed(method.__mro__):
        # Python 3.13 takes the indentation off docstrings by itself, others do not.
        text = inspect.cleandoc(vars(each).get("__doc__") or "")
        _, _, listed = text.partition("Attributes:")
        name = ""
        for line in listed.splitlines():
            if line.startswith(" " * 4) and not line.startswith(" " * 5) and ": " in line:
                name, _, words = line.strip().partition(": ")
                said[name] = words
            elif name and line.startswith(" " * 5):
                said[name] += f" {line.strip()}"
            elif line.strip():
                name = ""
    return said


def given(method: Any, problem: Problem) -> dict[str, Any]:
    """The fields of a plan that do not depend on how it is planned."""
    bounds, slope = method.bounds or Bounds(), method.lipschitz
    return {
        "method": method.name,
        "dim": problem.dim,
        "records": problem.records,
        "privacy": problem.privacy,
        "radius": method.radius,
        "bounds": bounds if slope is None else bounds & Bounds(lipschitz=slope),
        "lipschitz": slope,
        "gap": method.gap,
        "learner": method.learner,
    }


def check_tolerance(tolerance: float, lipschitz: float | None, gap: float | None) -> None:
    """Raise if a tolerance asks for nothing, or for a bound that cannot be worked out."""
    if lipschitz is None or gap is None:
        raise InvalidArgument("a tolerance needs lipschitz and gap: the bound is made of them.")
    if tolerance >= lipschitz:
        raise InvalidArgument(
            f"tolerance {tolerance:g} is not below lipschitz {lipschitz:g}: every point "
            "meets it. Ask for less."
        )
