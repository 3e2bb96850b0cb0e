"""Methods: each field is checked, each plan survives a file, and what others bring works everywhere."""

import dataclasses
import difflib
import inspect
import itertools
import json
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import blindstep as bs
from blindstep.errors import InvalidArgument, typed_record
from blindstep.estimate.directions import SAMPLERS, Directions, Sphere
from blindstep.optimize.learners import Choice, Falling, Learner
from blindstep.optimize.prefix import prefix_of
from blindstep.planning.estimates import Values
from blindstep.planning.method import Method, Problem, field_types, words_of
from blindstep.planning.plan import Plan, finished
from blindstep.private.mechanisms import MECHANISMS, Mechanism, matrix_of
from driver_runs import DATA, run, same

PRIVACY = bs.Privacy(mu=1.0)
SIZES = {"dim": 4, "records": 10**4, "privacy": PRIVACY}
KNOWN = {"radius": 0.5, "lipschitz": 1.0, "gap": 1.0}
METHODS = {
    "auto": bs.Auto(),
    "auto of gradients": bs.Auto(estimate="gradient"),
    "tight": bs.Tight(**KNOWN, first_batch=100),
    "tight by clip": bs.Tight(0.5, bs.Bounds(clip=1.0, range=(0, 2)), sampler="haar"),
    "paper": bs.Paper(**KNOWN, horizon=4),
    "klt": bs.Klt(**KNOWN),
    "questions": bs.Questions(range=(1, 5)),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_plan_of_every_method_survives_its_file(name):
    made = bs.plan(METHODS[name], **SIZES)
    assert made.method == METHODS[name].name
    assert Plan.from_json(made.to_json()) == made
    assert made.learner is not None


@pytest.mark.parametrize("kind", [bs.Auto, bs.Tight, bs.Paper, bs.Klt, bs.Questions])
def test_every_field_is_described_and_refuses_what_it_cannot_be(kind):
    words = words_of(kind)
    fields = {each.name: each for each in dataclasses.fields(kind)}
    usual = {"radius": 1.0, "lipschitz": 1.0, "gap": 1.0, "bounds": bs.Bounds(clip=1.0)}
    usual = {name: value for name, value in usual.items() if name in fields}
    for name in fields:
        assert words[name].endswith(".") or ":" in words[name]
        for wrong in [object()] if field_types(kind)[name] is not int else [0, -1, 2.5, "x"]:
            with pytest.raises((InvalidArgument, TypeError), match=name):
                kind(**{**usual, name: wrong})
    with pytest.raises(InvalidArgument, match=rf"{kind.__name__}\(\) has no argument 'xyz'"):
        kind(xyz=1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        kind(**usual).learner = None


def test_a_plan_file_names_its_parts():
    told = json.loads(bs.plan(bs.Auto(), **SIZES).to_json())
    assert told["estimate"]["kind"] == "values"
    assert told["calibration"]["number"] == 4
    assert told["comparison"] == {"batch": SIZES["records"] // 2, "share": 0.1, "number": 3}
    assert told["learner"]["name"] == "surveying"


@pytest.mark.parametrize(
    ("part", "value", "says"),
    [
        ("mechanism", "theirs", "import the module that defines it first"),
        ("estimate", {"sampler": "theirs"}, "import the module that defines it first"),
        ("learner", {"name": "theirs"}, "import the module that defines it first"),
    ],
)
def test_a_file_that_names_what_is_not_there_says_what_to_do(part, value, says):
    told = bs.plan(METHODS["tight by clip"], **SIZES).to_dict()
    told[part] = told[part] | value if isinstance(value, dict) else value
    with pytest.raises(InvalidArgument, match=says):
        Plan.from_json(json.dumps(told))


# -- what is brought from outside -----------------------------------------------------------------


class Mine(Sphere):
    """A sampler of somebody else's: nothing is proved along its directions."""

    name: ClassVar[str] = "mine"

    def moments(self, directions, dim):
        return None


class Half(Mechanism):
    """C = I + S / 2: half of each increment once more in the release after it."""

    name: ClassVar[str] = "half"
    steps: int = eqx.field(static=True)

    def init(self, size):
        return jnp.zeros((1, size))

    def next(self, state, increment, place):
        return increment[None], increment + state[0] / 2

    def column_counts(self):
        return np.append(np.full(self.steps - 1, 2.0), 1.0)


class Still(Learner):
    """Steps of one length, against the gradient."""

    name: ClassVar[str] = "still"

    def update(self, state, seen, pace):
        return Choice(state, 0.0, -0.5 * pace.reach / jnp.sqrt(seen.gradient_square))


@typed_record
class Short(Method):
    """Two steps on all records.

    Attributes:
        clip: clip norm of a record.
    """

    name: ClassVar[str] = "short"
    clip: float = 1.0

    def plan(self, problem: Problem) -> Plan:
        batch = problem.records
        made = Plan(
            method=self.name,
            estimate=Values(problem.dim, 0.1),
            mechanism="independent",
            records=problem.records,
            dim=problem.dim,
            horizon=2,
            period=1,
            rounds=1,
            first_batch=batch,
            diff_batch=batch,
            radius=0.5,
            reach=0.1,
            bounds=bs.Bounds(clip=self.clip),
            lipschitz=None,
            gap=None,
            privacy=problem.privacy,
        )
        return finished(made)


BLOCKS = {"horizon": 4, "period": 4, "first_batch": 6, "diff_batch": 2, "directions": 2}
BROUGHT = {
    "method": Short(clip=0.5),
    "sampler": bs.Tight(**KNOWN, sampler="mine", horizon=2, first_batch=6),
    "mechanism": bs.Tight(**KNOWN, mechanism="half", **BLOCKS),
    "learner": bs.Tight(**KNOWN, learner=Still(), **BLOCKS),
    "learner of auto": bs.Auto(learner=Falling(nearest=0.5), evaluations=2**14),
}


def test_a_learner_that_was_brought_to_auto_runs_in_drivers_that_calibrate(tmp_path):
    """Fixed plans with what others bring go through all drivers in tests/docs/test_extend.py."""
    plan = bs.plan(BROUGHT["learner of auto"], dim=2, records=24, privacy=bs.Privacy(mu=2.0))
    assert Plan.from_json(plan.to_json()) == plan
    first = run(plan=plan, directory=tmp_path / "run")
    np.testing.assert_allclose(run("host", plan=plan).means, first.means, atol=1e-9)
    assert same(run(plan=plan, directory=tmp_path / "run"), first)


def test_a_method_of_ones_own_is_given_to_minimize_itself():
    def loss(x, z):
        return jnp.abs(x - z).sum()

    result = bs.minimize(
        loss, np.zeros(2), DATA, bs.Privacy(mu=2.0), method=Short(clip=0.5), seed=1
    )
    assert result.plan.method == "short"


def test_along_directions_of_which_nothing_is_proved_nothing_is_certified():
    made = bs.plan(BROUGHT["sampler"], dim=2, records=24, privacy=PRIVACY)
    assert made.tolerance is None
    assert "nothing is proved along mine directions" in made.explain()
    with pytest.raises(InvalidArgument, match="nothing is proved along mine"):
        bs.plan(bs.Klt(**KNOWN, sampler="mine"), **SIZES)


def test_sums_of_an_unknown_mechanism_are_those_of_its_matrix():
    mechanism = Half(6)
    prefix = prefix_of(mechanism)
    np.testing.assert_allclose(prefix.matrix() @ matrix_of(mechanism), np.tri(6), atol=1e-12)
    np.testing.assert_allclose(prefix.row_norms(), np.linalg.norm(prefix.matrix(), axis=1))


def test_names_are_known_once_they_are_defined():
    assert SAMPLERS["mine"] is Mine
    assert MECHANISMS["half"] is Half
    with pytest.raises(InvalidArgument, match="there is a sampler 'sphere' already"):
        type("Sphere2", (Directions,), {"name": "sphere", "__module__": __name__})


# -- the public surface ---------------------------------------------------------------------------


def test_the_surface_is_small():
    assert len(inspect.signature(bs.minimize).parameters) <= 14
    assert len(set(bs.__all__) - {"errors", "callbacks"}) <= 22  # these two are modules


def test_no_two_public_signatures_repeat_each_other():
    calls = [bs.minimize, bs.tune, bs.value, bs.plan, bs.certificate, bs.Optimizer, bs.audit]
    listed = [list(map(str, inspect.signature(call).parameters.values())) for call in calls]
    listed += [[str(each) for each in field_types(kind).items()] for kind in (bs.Auto, bs.Tight)]
    for one, two in itertools.combinations(listed, 2):
        shared = difflib.SequenceMatcher(None, one, two, autojunk=False).find_longest_match()
        assert shared.size < 6, one[shared.a : shared.a + shared.size]
