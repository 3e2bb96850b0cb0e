"""What requests and responses of the API look like."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Person(_Body):
    """Who asks: any text that is always the same for a person. It is hashed and never stored."""

    person: Annotated[str, Field(min_length=1, max_length=500)]


class OneAnswer(_Body):
    """An answer: the token of the question, and a number (a vote: 1 for up, 0 for down)."""

    token: Annotated[str, Field(min_length=1, max_length=100)]
    value: Annotated[float, Field(allow_inf_nan=False)]


class ManyAnswers(_Body):
    """Up to 10,000 answers; each is taken or refused on its own."""

    answers: Annotated[list[OneAnswer], Field(min_length=1, max_length=10_000)]


class NewToken(_Body):
    """A token to make."""

    scope: Literal["admin", "site", "metrics"]
    study: Annotated[str, Field(max_length=32, pattern=r"^[0-9a-f]+$")] | None = None
    label: Annotated[str, Field(max_length=100, pattern=r"^[^\x00-\x1f]*$")] = ""


class Question(BaseModel):
    """What to show to a person, and how to answer, if they are asked."""

    status: Annotated[
        str,
        Field(description="asked, answered, full, closing, paused or over (see docs/serve.md)."),
    ]
    parameters: Annotated[
        dict[str, float], Field(description="To be shown, whatever the status, in your units.")
    ]
    step: int
    token: Annotated[str | None, Field(description="With status asked: answer with it.")] = None
    part: Annotated[int | None, Field(description="1 or 2: which of a person's two.")] = None


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
