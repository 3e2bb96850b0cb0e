"""What a worker keeps of studies in memory, and what it lets go.

Of a study that runs: its mathematics, the questions of its open step with the points that were made
last, and the program of its release. Of one that is over or paused nothing, unless somebody has just
asked about it: a service that has had a thousand studies needs no more memory than one that has had
none. All of it is made again from the database when it is needed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection

from blindstep.serve.design import Design, Step
from blindstep.serve.schema import Row

# For how many seconds, and of how many studies that do not run, it is kept after it was asked for.
_USED, _MOST_IDLE = 300.0, 100
# The bytes of people's points, in all studies together.
_POINTS = 2**27


class Kept:
    """The mathematics and the open steps of studies. Threads may share it."""

    def __init__(
        self,
        row: Callable[[str | int], Row],
        snapshot: Callable[[int, int], tuple[str | None, dict[str, float]]],
    ) -> None:
        """`row` reads a study's row, `snapshot` the state in which a step begins."""
        self._row, self._snapshot = row, snapshot
        self._designs: dict[str | int, Design] = {}  # by id and by number
        self._steps: dict[int, Step] = {}
        self._used: dict[int, float] = {}
        self._loading = threading.RLock()

    def known(self, study: str | int) -> Design | None:
        """The mathematics of a study, by its id or number, if it is in memory already."""
        found = self._designs.get(study)
        if found is not None:
            self._used[found.number] = time.monotonic()
        return found

    def design(self, study: str | int) -> Design:
        """The mathematics of a study, by its id or number: it never changes."""
        with self._loading:
            if (found := self.known(study)) is None:
                found = Design(self._row(study))
                self._designs[found.study] = self._designs[found.number] = found
                self._used[found.number] = time.monotonic()
            return found

    def past(self, study: str, release: int) -> bool:
        """Whether this worker has seen that more steps of a study were released than so many."""
        design = self._designs.get(study)
        known = None if design is None else self._steps.get(design.number)
        return known is not None and known.release > release

    def step(self, row: Row) -> Step:
        """The questions of a study's open step: kept until the next one is open."""
        with self._loading:
            known = self._steps.get(row["number"])
            if known is None or known.release != row["release"]:
                number, release = row["number"], row["release"]
                design = self.design(number)
                known = design.step(release, *self._snapshot(number, release))
                self._steps[number] = known
            return known

    def let_go(self, running: Collection[int]) -> None:
        """Let go of studies that do not run and were not asked for; and of points, if they are many."""
        with self._loading:
            numbers = [number for number in self._designs if isinstance(number, int)]
            idle = [number for number in numbers if number not in running]
            idle.sort(key=lambda number: self._used.get(number, 0.0))
            longest = len(idle) - _MOST_IDLE
            for place, number in enumerate(idle):
                if place < longest or self._used.get(number, 0.0) < time.monotonic() - _USED:
                    self._forget(number)
            too_many = sum(step.size for step in self._steps.values()) - _POINTS
            for step in sorted(self._steps.values(), key=lambda step: -step.size):
                if too_many > 0:
                    too_many -= step.shrink()

    def clear(self) -> None:
        """Let go of everything."""
        with self._loading:
            for number in [number for number in self._designs if isinstance(number, int)]:
                self._forget(number)

    def _forget(self, number: int) -> None:
        design = self._designs.pop(number)
        self._designs.pop(design.study, None)
        self._steps.pop(number, None)
        self._used.pop(number, None)
