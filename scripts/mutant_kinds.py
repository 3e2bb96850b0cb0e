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


PAPER = "audit --method paper --records 2000"
TIGHT = "audit --records 2000"
CLIPPED = (
    "audit --clip 1 --records 2000 --oracle naive --horizon 8 --first-batch 20 --sharing record"
)
PASSES = "audit --records 2000 --oracle naive --horizon 8 --first-batch 100 --passes 4"

CLIP, SCHEDULE, MECHANISMS, NOISE = (
    f"private/{name}.py" for name in ("clip", "schedule", "mechanisms", "noise")
)
TERMS, GATE, ACCOUNTING = (f"private/{name}.py" for name in ("terms", "gate", "accounting"))
STATEMENT = "planning/statement.py"
LEDGER, SESSION, SHARING = (f"ledger/{name}.py" for name in ("ledger", "session", "storage"))
GROUP = "processes/jax_group.py"
LEAST_NOISE = "planning/noise.py"  # guarded by `Terms.within`


def test_of(folder: str, file: str, name: str) -> str:
    """A test by its folder, file and name, as pytest takes it."""
    return f"tests/{folder}/test_{file}.py::test_{name}"
