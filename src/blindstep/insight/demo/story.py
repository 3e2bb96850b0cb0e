"""What a demonstration tells: a table of scores, each with what it cost in privacy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from blindstep.drivers.result import Result

# Epsilon of rows without privacy: the same code runs, with little noise. It protects nobody.
NO_PRIVACY = 80.0

# Told before each run what it is; None for a demonstration without progress bars.
Say = Callable[[str], None]


@dataclass(frozen=True)
class Row:
    """One row of a story's table.

    Attributes:
        label: what was done.
        score: how good the outcome is, on public data.
        result: the private run that led to it; None where there was none, or none that is private.
    """

    label: str
    score: float
    result: Result | None = None

    def to_dict(self) -> dict[str, Any]:
        """The row for machines: label, score and the privacy statement."""
        statement = None if self.result is None else self.result.privacy.to_dict()
        return {"label": self.label, "score": self.score, "privacy": statement}


@dataclass(frozen=True)
class Story:
    """One of the two stories.

    Attributes:
        title: what it is about.
        score: what the scores are called.
        meaning: what they are, in a sentence.
        rows: from the start to the best there is.
    """

    title: str
    score: str
    meaning: str
    rows: tuple[Row, ...]

    def to_dict(self) -> dict[str, Any]:
        """The story for machines."""
        rows = [row.to_dict() for row in self.rows]
        return {
            "title": self.title,
            "score": self.score,
            "meaning": self.meaning,
            "rows": rows,
        }
