"""One record's walk through the house: a straight line, and the tool that draws it sees a turn."""

import pytest
from scripts import walk

from blindstep.estimate.estimators import length
from blindstep.estimate.probing import Probing
from blindstep.optimize import learners
from blindstep.private.gate import Contributions
from blindstep.run import step


def test_every_walk_is_short_and_straight(capsys):
    assert walk.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0].strip() for line in lines] == [
        "compiled",
        "host",
        "on the side, before the release",
        "ask/tell",
        "on the side, before the release",
    ]
    for line in lines[0], lines[1], lines[3]:
        modules = line.split(": ")[1].split(" -> ")
        assert len(modules) <= walk.MOST_MODULES
        assert walk.rooms(modules) == ["drivers", "estimate", "private", "optimize"]
        parts = ["estimate.probing", "private.clip", "private.gate", "optimize.learners"]
        assert [module for module in modules if module in parts] == parts
    assert "ledger.session" in lines[2]


def test_a_walk_that_turns_back_is_seen(monkeypatch):
    real = learners._descend

    def roundabout(state, move, gradient, square, step, reach):
        return real(state, move, gradient * length(gradient), square, step, reach)

    monkeypatch.setattr(learners, "_descend", roundabout)
    walks, _ = walk.by_compiled(walk.plan_of("record"))
    problem = walk.broken(walks[0])
    assert problem is not None
    assert "room estimate is entered twice: drivers -> estimate -> private -> optimize" in problem


def test_a_driver_that_looks_at_a_vector_is_seen(monkeypatch):
    """What comes out of estimate goes to the gate: not to a driver first."""
    names, real = {}, Probing.contributions
    exec(compile("def look(vectors):\n    return 1.0 * vectors\n", step.__file__, "exec"), names)

    def contributions(probing, query, batch):
        found = real(probing, query, batch)
        return Contributions(found.batch_size, lambda *rows: names["look"](found.of(*rows)))

    monkeypatch.setattr(Probing, "contributions", contributions)
    walks, _ = walk.by_compiled(walk.plan_of("record"))
    assert "room drivers is entered twice" in (walk.broken(walks[0]) or "")


@pytest.mark.parametrize("number", [13, 14])
def test_a_walk_of_many_modules_is_too_long(number):
    found = walk.broken([f"drivers.module{i}" for i in range(number)])
    assert found == (None if number == 13 else "14 modules, at most 13 allowed")
    assert walk.broken([]) == "nothing was followed"
