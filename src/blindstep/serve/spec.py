"""What an operator says about a study, and what requests and responses of the API contain.

A study has parameters, a range of answers, an expected number of people, and an epsilon. Everything
else follows: the plan from method `Questions`, the scales of the parameters from their ranges, delta
from the number of people.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from blindstep.estimate.scales import Scales
from blindstep.ledger.budget import Privacy
from blindstep.planning.estimates import Watch
from blindstep.planning.plan import Plan
from blindstep.planning.planner import plan
from blindstep.planning.questions import Questions
from blindstep.serve.forecast import Forecast, forecast

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,63}$")]
_PRINTED = r"^[^\x00-\x1f]*$"
_OF_WORDS = StringConstraints(strip_whitespace=True, min_length=1, max_length=100, pattern=_PRINTED)
Words = Annotated[str, _OF_WORDS]
# A step is released in one transaction, which others wait for: a million votes take seconds. More
# people than 16 such steps hold would make the noise smaller than anybody could see.
_MOST_PLANNED, _MOST_STEPS = 1_000_000, 1_000
# Of being content and of having come, against the gradient: 6% more noise. And with fewer steps than
# so many none is spared for the comparison with the start.
_WEIGHT, _LEAST_TO_COMPARE = 0.25, 4
Real = Annotated[float, Field(ge=-1e12, le=1e12, allow_inf_nan=False)]


class _Strict(BaseModel):
    """A field that is not known is refused: it would otherwise be ignored silently."""

    model_config = ConfigDict(extra="forbid")


class Parameter(_Strict):
    """A number that the service may choose: its name, its range, and where to start (the middle)."""

    name: Name
    low: Real
    high: Real
    start: Real | None = None

    @model_validator(mode="after")
    def _in_order(self) -> Parameter:
        if not self.high - self.low > 1e-9 * max(abs(self.low), abs(self.high)):
            raise ValueError("high must be above low")
        if self.start is not None and not self.low <= self.start <= self.high:
            raise ValueError("start must lie between low and high")
        return self

    @property
    def begins(self) -> float:
        """Where the study starts."""
        return (self.low + self.high) / 2.0 if self.start is None else self.start


_RANGES = {
    "vote": (0.0, 1.0),
    "rating": (1.0, 5.0),
    "number": (0.0, 0.0),
    "comparison": (-1.0, 1.0),
}


class Answer(_Strict):
    """What people answer: a vote up (1) or down (0), a rating, or a number; and which is better.

    A comparison shows two options at once: the answer is -1 if the first is better, 1 if the second is.
    """

    kind: Literal["vote", "rating", "number", "comparison"] = "vote"
    low: Real | None = None
    high: Real | None = None
    better: Literal["higher", "lower"] = "higher"

    @model_validator(mode="after")
    def _with_range(self) -> Answer:
        if self.kind in ("vote", "comparison"):
            if self.low is not None or self.high is not None or self.better == "lower":
                values = "1 for up and 0 for down" if self.kind == "vote" else "-1 or 1"
                raise ValueError(f"a {self.kind} is {values}: leave the rest out")
            return self
        low, high = self.range
        if not high > low:
            raise ValueError("give low and high, with high above low")
        if self.kind == "rating" and (low != round(low) or high != round(high)):
            raise ValueError("a rating goes from one whole number to another")
        return self

    @property
    def range(self) -> tuple[float, float]:
        """The lowest and the highest answer."""
        low, high = _RANGES[self.kind]
        return low if self.low is None else self.low, high if self.high is None else self.high

    @property
    def questions(self) -> int:
        """How many questions a person is asked: two, or one about two options."""
        return 1 if self.kind == "comparison" else 2

    def loss(self, value: float) -> float | None:
        """The answer as a loss from 0 (best) to 1 (worst); None if no person can give it.

        That of a comparison is the loss of its first option; the second one's is 1 minus it.
        """
        low, high = self.range
        if not low <= value <= high or (self.kind != "number" and value != round(value)):
            return None
        if self.kind == "comparison":
            return None if value == 0 else (1.0 + value) / 2.0
        share = (value - low) / (high - low)
        return 1.0 - share if self.better == "higher" else share


class Traffic(_Strict):
    """How many people to expect, from what an operator knows of a page."""

    visitors_per_day: Annotated[float, Field(gt=0, le=1e9, description="People, not visits.")]
    response_rate: Annotated[float, Field(gt=0, le=1, description="Share of them who answer.")]
    days: Annotated[float, Field(gt=0, le=3650, description="How long the study may take.")]


class StudySpec(_Strict):
    """A study as an operator asks for it."""

    name: Words
    parameters: Annotated[list[Parameter], Field(min_length=1, max_length=256)]
    people: Annotated[int, Field(ge=16, le=16 * _MOST_PLANNED, description="People expected.")]
    epsilon: Annotated[float, Field(ge=1e-4, le=100, allow_inf_nan=False)]
    delta: Annotated[float, Field(ge=1e-30, lt=1)] | None = None
    answer: Answer = Answer()
    neighbours: Literal["replace", "zero-out"] = Field(
        "replace",
        description="What epsilon is about: one person replaced by another, or one who stays away.",
    )
    people_per_step: Annotated[int, Field(ge=1, le=_MOST_PLANNED)] | None = Field(
        None, description="People expected in a step; people / 16 if left out. More may come."
    )
    window_seconds: float = Field(
        86_400.0, ge=1, le=3.2e7, description="How long a step asks people: a day if left out."
    )
    control: float = Field(
        0.05,
        ge=0.0,
        le=0.5,
        description="Share of the people who see the start and where the study stands.",
    )
    most_change: float = Field(
        1.0,
        gt=0.0,
        le=1.0,
        description="How far a shown parameter may be from where it stands, as a share of its range.",
    )
    traffic: Traffic | None = Field(
        None, description="Instead of people: they follow from it, and how long windows are."
    )
    despite_noise: bool = Field(
        False, description="Make the study although its forecast says that noise would win."
    )
    cohort: Words | None = Field(
        None, description="Whose ledger: studies on the same people share one."
    )
    budget_epsilon: Annotated[float, Field(ge=1e-4, le=100)] | None = Field(
        None, description="What all studies of the cohort may spend, at this study's delta."
    )

    @model_validator(mode="before")
    @classmethod
    def _from_traffic(cls, given: Any) -> Any:
        if not isinstance(given, dict) or given.get("traffic") is None or "people" in given:
            return given
        traffic = Traffic.model_validate(given["traffic"])
        people = int(traffic.visitors_per_day * traffic.response_rate * traffic.days)
        each = given.get("people_per_step") or max(1, people // 16)
        window = 86_400.0 * traffic.days * each / max(people, 1)
        return {"window_seconds": max(1.0, window), **given, "people": people}

    @model_validator(mode="after")
    def _named_once(self) -> StudySpec:
        names = [parameter.name for parameter in self.parameters]
        if len(set(names)) < len(names):
            raise ValueError("two parameters have the same name")
        each = self.people_per_step
        if each is not None and not 1 <= self.people // each <= _MOST_STEPS:
            raise ValueError(
                f"people_per_step must be at most people, and at least people / {_MOST_STEPS}"
            )
        if self.delta is not None and self.delta * self.people >= 1:
            raise ValueError("delta must be below 1 / people: leave it out")
        return self

    @property
    def privacy(self) -> Privacy:
        """The budget. Without a delta, a power of ten that is at most a hundredth of 1 / people."""
        power = -(2 + math.ceil(math.log10(self.people)))
        delta = self.delta or 10.0**power
        return Privacy(epsilon=self.epsilon, delta=delta, neighbours=self.neighbours)

    def forecast(self) -> Forecast:
        """What studies of this size closed of the gap from start to best, in simulation."""
        return forecast(len(self.parameters), self.people, self.epsilon)

    def plan(self) -> Plan:
        """The plan: windows, two questions a person, answers as losses from 0 to 1."""
        asked = Questions(questions=2, range=(0, 1), first_batch=self.people_per_step)
        made = plan(asked, dim=len(self.parameters), records=self.people, privacy=self.privacy)
        watch = Watch(self.control, _WEIGHT, final=made.rounds >= _LEAST_TO_COMPARE)
        return replace(made, windows=True, watch=watch)

    @property
    def names(self) -> list[str]:
        """The parameters' names, in the order of the vector."""
        return [parameter.name for parameter in self.parameters]

    def scales(self) -> Scales:
        """Where the study starts, and the unit of each parameter: half of its range.

        All steps together are 1.1 sqrt(d) units long (`optimize.questions`), and no point of the
        ranges is more than sqrt(d) units from their middle: a study that starts there can reach all
        of them. (Longer units for a start near an end lost more by coarse questions than they won.)
        """
        starts = [each.begins for each in self.parameters]
        halves = [(each.high - each.low) / 2.0 for each in self.parameters]
        return Scales(np.array(starts), np.array(halves), np.asarray(1.0), False)

    def clamp(
        self,
        points: Float[np.ndarray, "*points dim"],
        now: Float[np.ndarray, " dim"] | None = None,
    ) -> Float[np.ndarray, "*points dim"]:
        """Points inside the ranges, and not too far from `now`: what is shown.

        The loss that is minimised is that of these.
        """
        low = np.array([each.low for each in self.parameters])
        high = np.array([each.high for each in self.parameters])
        if now is not None:
            far = self.most_change * (high - low)
            low, high = np.maximum(low, now - far), np.minimum(high, now + far)
        return np.clip(points, low, high)

    def parameters_of(self, point: Float[np.ndarray, " dim"]) -> dict[str, float]:
        """A point by name, in the operator's units."""
        return dict(zip(self.names, self.clamp(point).tolist(), strict=True))


class Person(_Strict):
    """Whom to ask: any text that is always the same for a person. It is hashed and never stored."""

    person: Annotated[str, Field(min_length=1, max_length=500)]


class OneAnswer(_Strict):
    """An answer: the token of the question, and a number (a vote: 1 for up, 0 for down)."""

    token: Annotated[str, Field(min_length=1, max_length=100)]
    value: Annotated[float, Field(allow_inf_nan=False)]


class ManyAnswers(_Strict):
    """Up to 10,000 answers; each is taken or refused on its own."""

    answers: Annotated[list[OneAnswer], Field(min_length=1, max_length=10_000)]


class OpenStep(_Strict):
    """Which step is meant, counted from 1: so a request that is repeated does not mean the next one."""

    step: Annotated[int, Field(ge=1)] | None = None


class NewToken(_Strict):
    """A token to make."""

    scope: Literal["admin", "viewer", "site", "metrics"]
    study: Annotated[str, Field(max_length=32, pattern=r"^[0-9a-f]+$")] | None = None
    label: Annotated[str, Field(max_length=100, pattern=_PRINTED)] = ""


# Of a field that failed, its name is repeated only if it is one of ours: a name may be anything.
NAMES = {"body", "query", "path"}.union(*(each.model_fields for each in _Strict.__subclasses__()))


class Question(BaseModel):
    """What to show to a person, and how to answer, if they are asked."""

    status: str = Field(description="asked, answered, paused or over (see docs/serve.md).")
    parameters: dict[str, float] = Field(
        description="To be shown, whatever the status, in your units."
    )
    step: int
    token: str | None = Field(None, description="With status asked: answer with it.")
    part: int | None = Field(None, description="1 or 2: which of a person's two.")
    options: list[dict[str, float]] | None = Field(
        None, description="Of a comparison: what to show beside each other, the first one first."
    )


class AnswerTaken(BaseModel):
    """The answer is on the disk. After the first comes the person's second question."""

    status: Literal["accepted"] = "accepted"
    next: Question | None = None


class Token(BaseModel):
    """A token; `token` itself is there once, when it is made."""

    id: str
    scope: str
    study: str | None
    label: str
    token: str | None = None


class Error(BaseModel):
    """A refusal: `code` for programs, `message` for people."""

    class Inside(BaseModel):
        """The refusal itself."""

        code: str
        message: str

    error: Inside


def refused(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """These statuses, documented."""
    return {status: {"model": Error} for status in statuses}
