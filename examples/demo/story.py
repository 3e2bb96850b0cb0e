"""What a demonstration tells: a table of scores, each with what it cost in privacy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from blindstep.ledger.budget import Privacy
from blindstep.run.result import Result

# Epsilon of rows without privacy: the same code runs, with little noise. It protects nobody.
NO_PRIVACY = 80.0

# Told before each run what it is; None for a demonstration without progress bars.
Say = Callable[[str], None]


@dataclass(frozen=True)
class Row:
    """What was done, how good the outcome is on public data, and the private run that led to it."""

    label: str
    score: float
    result: Result | None = None  # None where there was no run, or none that is private

    def to_dict(self) -> dict[str, Any]:
        """The row for machines: label, score and the privacy statement."""
        statement = None if self.result is None else self.result.privacy.to_dict()
        return {"label": self.label, "score": self.score, "privacy": statement}


@dataclass(frozen=True)
class Story:
    """One of the two stories."""

    title: str
    score: str  # what the scores are called
    meaning: str  # what they are, in a sentence or two
    rows: tuple[Row, ...]  # from the start to the best there is

    def to_dict(self) -> dict[str, Any]:
        """The story for machines."""
        return {**vars(self), "rows": [row.to_dict() for row in self.rows]}


def rows_of(
    name: str,
    say: Say | None,
    budgets: Iterable[Privacy],
    run: Callable[[Privacy], tuple[float, Result]],
) -> list[Row]:
    """Run each budget, the one without privacy too: `run` gives the score and the result."""
    rows = []
    for budget in budgets:
        private = budget.epsilon < NO_PRIVACY
        label = f"epsilon {budget.epsilon:g}" if private else "no privacy"
        if say is not None:
            say(f"{name}, {label}:")
        score, result = run(budget)
        rows.append(Row(label, score, result if private else None))
    return rows
