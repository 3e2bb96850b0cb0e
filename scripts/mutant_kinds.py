"""What a mutant is: a privacy bug as an edit of the source, and what must catch it.

An edit is (file under src/blindstep, exact old text, new text). The old text must be there exactly
once: where the source has moved on, put the mutant back on it. `caught_by` names tests, or an audit by
the options of `blindstep audit`, which must say BROKEN.
"""

from __future__ import annotations

from dataclasses import dataclass

Edit = tuple[str, str, str]


@dataclass(frozen=True)
class Mutant:
    """A bug: each of `caught_by` must find it."""

    name: str
    edits: tuple[Edit, ...]
    caught_by: tuple[str, ...]


def mutant(name: str, file: str, old: str, new: str, *caught_by: str) -> Mutant:
    """A mutant of one edit."""
    return Mutant(name, ((file, old, new),), caught_by)


PAPER = "audit --preset paper --records 2000"
TIGHT = "audit --records 2000"
CLIPPED = (
    "audit --clip 1 --records 2000 --oracle naive --horizon 8 --first-batch 20 --sharing record"
)
PASSES = "audit --records 2000 --oracle naive --horizon 8 --first-batch 100 --passes 4"

ORACLE, ESTIMATORS, INCREMENTS, PREFIX, RANDOMNESS, SCHEDULE, ACCOUNTING, ARITHMETIC, LEDGER = (
    f"trusted/{name}.py"
    for name in (
        *("oracle", "estimators", "increments", "prefix", "randomness", "schedule", "accounting"),
        *("arithmetic", "ledger"),
    )
)
CHACHA, CONVERSION, COMPILED, SESSION = (
    "trusted/chacha.py",
    "optimize/conversion.py",
    "drivers/compiled.py",
    "drivers/session.py",
)

DRAW = "draw = self.arithmetic.draw(key, block, step, size, std)"
AHEAD = "NoiseAhead(first, self.arithmetic.draw(key, block, place + 1, size, std))"
BLOCK = "block = state.epoch * self.blocks_per_epoch + state.step // self.period"
RELEASE = "self.oracle.release(state.oracle, increment, block, in_block, noise)"
NODES = "return np.sqrt(nodes)"
CHARGE = "            session.before_release(session.position, horizon, replay=True)\n"
AFTER_RUN = "            seconds = time.perf_counter() - began\n"
PAPERS = "np.full(self.steps, np.sqrt(2 * np.log(self.steps)))"
