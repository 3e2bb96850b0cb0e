"""What a run on a network returns: the model is the answer, and a small file is all that it takes."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from blindstep.drivers import outcome
from blindstep.drivers.history import History
from blindstep.optimize.plan import Plan
from blindstep.private.statement import Statement
from blindstep.torch.course import Course
from blindstep.torch.tuned_file import Tuned, write


@dataclass(frozen=True)
class Result:
    """The answer of a run; the model that was given has been changed to it.

    Attributes:
        privacy: the privacy statement.
        plan: the plan that was run.
        history: public quantities over the run.
        best_round: the model is at the mean of this round's points: the last round's, unless an
            earlier one has a lower loss beyond doubt.
        base: the fingerprint of the model that it started from.
        tuned: the fingerprint of the model as it is now.
        names: the tuned parameters.
        sizes: how many numbers each has.
    """

    privacy: Statement
    plan: Plan
    history: History
    best_round: int
    base: str
    tuned: str
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    _course: Course = field(repr=False)

    @property
    def outcome(self) -> str:
        """How the run went and what would help, in a sentence or two, from releases alone."""
        return outcome.sentence(self.plan, self.history, None)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the tuned model as a small file: `blindstep.torch.load` makes it from the base model.

        It holds public numbers alone: key, plan, units and released numbers, and no weight.
        """
        write(
            path,
            Tuned(
                *(self.base, self.tuned, self.names, self.sizes, self.best_round),
                *(self._course, str(self.privacy)),
            ),
        )

    def __str__(self) -> str:
        return (
            f"{self.plan.schedule.releases} steps of {self.plan.directions} directions; the model is "
            f"at the mean of round {self.best_round + 1} of {self.plan.rounds}.\n{self.outcome}\n"
            f"{self.privacy}"
        )
