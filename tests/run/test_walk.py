"""One record's walk through the house: a straight line, and the tool that draws it sees a turn."""

import pytest
from scripts import walk

from blindstep.estimate.estimators import length
from blindstep.estimate.probing import Probing
from blindstep.optimize import learners
from blindstep.private.gate import Contributions
from blindstep.run import loop

ROOMS = {
    "compiled": ["losses", "estimate", "private", "optimize"],
    "host": ["losses", "run", "estimate", "private", "optimize"],
    "ask/tell": ["run", "estimate", "private", "optimize"],
    "torch": ["torch", "estimate", "private", "optimize"],
    "service": ["serve", "estimate", "private", "optimize"],
}


def test_every_walk_is_short_and_straight(capsys):
    pytest.importorskip("torch")
    assert walk.main() == 0
    lines = [line.split(": ") for line in capsys.readouterr().out.splitlines()]
    found = {name: modules.split(" -> ") for name, modules in lines if not name.startswith(" ")}
    assert list(found) == list(ROOMS)
    for name, modules in found.items():
        assert len(modules) <= walk.MOST_MODULES
        assert walk.rooms(modules) == ROOMS[name]
        assert "private.clip" in modules
        assert "optimize.machine" in modules
    aside = [modules for name, modules in lines if name.startswith(" ")]
    assert any("ledger.session" in modules for modules in aside)


def test_a_walk_that_turns_back_is_seen(monkeypatch):
    real = learners._projected

    def roundabout(state, seen, step, reach):
        choice = real(state, seen, step, reach)
        return choice._replace(along=choice.along * length(seen.gradient_square[None]))

    monkeypatch.setattr(learners, "_projected", roundabout)
    walks, _ = walk.by_compiled(walk.plan_of("record"))
    problem = walk.broken(walks[0])
    assert problem is not None
    assert "room estimate is entered twice: losses -> estimate -> private -> optimize" in problem


def test_a_driver_that_looks_at_a_vector_is_seen(monkeypatch):
    """What comes out of estimate goes to the gate: not to a driver first."""
    names, real = {}, Probing.contributions
    exec(compile("def look(vectors):\n    return 1.0 * vectors\n", loop.__file__, "exec"), names)

    def contributions(probing, query, batch):
        found = real(probing, query, batch)
        return Contributions(found.batch_size, lambda *rows: names["look"](found.of(*rows)))

    monkeypatch.setattr(Probing, "contributions", contributions)
    walks, _ = walk.by_compiled(walk.plan_of("record"))
    walked = walk.rooms(walks[0])
    assert walked[:4] == ["losses", "estimate", "run", "private"]


@pytest.mark.parametrize("number", [14, 15])
def test_a_walk_of_many_modules_is_too_long(number):
    found = walk.broken([f"run.module{i}" for i in range(number)])
    assert found == (None if number == 14 else "15 modules, at most 14 allowed")
    assert walk.broken([]) == "nothing was followed"
