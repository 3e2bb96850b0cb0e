"""`plan`: what it answers, in the words of its arguments, and the figures that version 0.1 had."""

import dataclasses
import inspect
import math

import numpy as np
import pytest

from blindstep.errors import InvalidArgument, VacuousPlan, answers_typos
from blindstep.estimate.bounds import Bounds
from blindstep.estimate.estimators import Kind
from blindstep.ledger.budget import Privacy
from blindstep.planning import planner
from blindstep.planning.plan import PastTheMost, Plan
from blindstep.planning.planner import plan
from blindstep.planning.tight import Tight
from blindstep.private import schedule
from plans import plan_of

PROBLEM = {"dim": 20, "privacy": Privacy(mu=1.0), "radius": 0.1, "lipschitz": 1.0, "gap": 1.0}
SMALL = {**PROBLEM, "records": 10**4, "horizon": 16, "period": 4, "first_batch": 40}
LEFT_OUT = object()
CLIPPED = {"lipschitz": None, "gap": None}


# -- 0.1 --------------------------------------------------------------------------------------

# What version 0.1 planned: tolerance, noise_std, (horizon, period, rounds, B1, B2, q).
OF_0_1 = {
    "readme": (
        {"records": 10**6},
        (0.2291532650, 0.1329971938, (137, 1, 135, 54, 1, 20)),
    ),
    "variance-reduced": (
        {"records": 10**6, "dim": 100, "oracle": "variance-reduced"},
        (0.3893929473, 0.0354719229, (90, 2, 91, 170, 74, 100)),
    ),
    "few evaluations": (
        {"records": 10**6, "dim": 100, "evaluations": 10**7},
        (0.5009622868, 0.0614505083, (32, 1, 61, 512, 1, 5)),
    ),
    "theorem": (
        {"records": 10**8, "dim": 5, "method": "paper"},
        (0.0701511356, 0.0016528926, (48400, 48400, 1033, 48401, 1, 5)),
    ),
    "klt": (
        {"records": 10**6, "method": "klt"},
        (0.5684994212, 0.0121826669, (2435, 2435, 205, 2435, 1, 20)),
    ),
    "clip norm": (
        {
            "records": 4000,
            "dim": 826,
            "radius": 2.0,
            "bounds": Bounds(clip=1.0),
            "passes": 20,
            **CLIPPED,
        }
        | {"privacy": Privacy(epsilon=4.38)},
        (None, 0.0089392945, (10, 1, 8, 1000, 1, 256)),
    ),
    "votes": (
        {
            "records": 200_000,
            "radius": 3.0,
            "bounds": Bounds(range=(0, 1)),
            "oracle": "naive",
            **CLIPPED,
        }
        | {"privacy": Privacy(epsilon=1, delta=1e-6), "directions": 1, "sharing": "record"}
        | {"horizon": 10, "first_batch": 2000, "smoothing": 1.0, "reach": 0.2},
        (None, 0.0422467889, (10, 1, 10, 2000, 1, 1)),
    ),
}


# Version 0.1 had nothing against a delta of 0.2 / records.
@pytest.mark.filterwarnings("ignore::blindstep.errors.LargeDelta")
@pytest.mark.parametrize("name", OF_0_1)
def test_plans_are_those_of_0_1(name):
    given, (tolerance, noise_std, numbers) = OF_0_1[name]
    made = plan_of(**{**PROBLEM, **given})
    names = ("horizon", "period", "rounds", "first_batch", "diff_batch", "directions")
    assert tuple(getattr(made, each) for each in names) == numbers
    # Now exact on a lattice, which costs less than half a percent, and never saves any.
    assert 1 < made.noise_std / noise_std < 1.005
    assert made.tolerance is None or 1 < made.tolerance / tolerance < 1.005


# -- one plan ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [{}, {"method": "paper", "period": LEFT_OUT}, {"mechanism": "sqrt", "sharing": "block"}],
)
def test_derived_numbers_are_those_of_the_gates_terms(given):
    asked = {**SMALL, **given}
    made = plan_of(**{name: at for name, at in asked.items() if at is not LEFT_OUT})
    terms = made.terms
    assert made.noise_std == terms.noise_std
    assert made.mu == terms.mu() <= made.privacy.mu
    assert made.mu == pytest.approx(made.privacy.mu, rel=1e-9) or made.method == "paper"
    assert made.sensitivity == max(terms.sensitivities())
    assert made.passes == terms.schedule.passes
    assert made.size == terms.size == made.estimator.size
    for kind, clip in zip((Kind.GRAD, Kind.DIFF), made.clips, strict=True):
        assert clip == terms.clip_of(kind) == made.estimator.record_bound(kind)
    rows = np.linalg.norm(made.build().prefix.matrix(), axis=1)
    np.testing.assert_allclose(made.release_std(), terms.noise_std * rows, rtol=1e-9)


def test_fields_are_choices_and_nothing_derived():
    names = {field.name for field in dataclasses.fields(Plan)}
    asked = {field.name for field in dataclasses.fields(Tight)}
    sizes = {"dim", "records", "privacy", "method", "notes"}
    scaled = {"natural_units", "calibration", "comparison", "curve", "secret", "windows", "watch"}
    assert names - asked == sizes | scaled | {"by_corollary"}
    # Replacing a choice moves everything that follows from it.
    made = plan_of(**SMALL)
    less = dataclasses.replace(made, privacy=Privacy(mu=0.5))
    assert less.noise_std == pytest.approx(2 * made.noise_std, rel=1e-3)
    assert less.mu <= 0.5
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.reach = 1.0


def test_a_plan_is_checked_however_it_is_made():
    made = plan_of(**SMALL)
    for wrong, says in [
        ({"period": 5}, "horizon 16 is not a multiple of the period 5"),
        ({"mechanism": "magic"}, "no mechanism 'magic': there are independent, tree"),
        ({"rounds": 0}, "rounds must be a whole number of at least 1"),
        ({"reach": math.nan}, "reach must be a finite number"),
    ]:
        with pytest.raises(InvalidArgument, match=says):
            dataclasses.replace(made, **wrong)
    with pytest.raises(PastTheMost, match="1099511627776 releases"):
        _ = dataclasses.replace(made, horizon=2**40, rounds=1, period=1).schedule
    with pytest.raises(InvalidArgument, match="does not fit"):
        _ = dataclasses.replace(made, first_batch=10**5).schedule


def test_numbers_become_pythons_own():
    made = plan_of(**{**SMALL, "records": np.int64(10**4), "lipschitz": 1, "gap": np.float64(2)})
    assert type(made.records) is int
    assert type(made.lipschitz) is type(made.gap) is float


def test_a_plan_can_be_read_aloud():
    made = plan_of(**SMALL)
    said = str(made)
    for words in ("rounds", "passes ", "over the records", "Certifies radius 0.1", "largest part"):
        assert words in said
    assert "epoch" not in said


# -- what cannot be planned -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"lipshitz": 1.0}, r"Tight\(\) has no argument 'lipshitz': did you mean 'lipschitz'\?"),
        ({"horizons": 1}, "did you mean 'horizon'"),
        ({"secure": True}, "has no argument 'secure': it has radius, bounds"),
        ({"records": None}, "either records or tolerance"),
        ({"tolerance": 0.5}, "either records or tolerance"),
        ({"records": None, "tolerance": 2.0}, "every point meets it"),
        ({"records": None, "tolerance": 0.5, "gap": None}, "needs lipschitz and gap"),
        ({"records": None, "tolerance": 0.5, "horizon": 5}, "leaves horizon and rounds"),
        ({"records": None, "tolerance": 0.5, "passes": 2, "first_batch": 5}, "certify nothing"),
        ({"lipschitz": None}, "nothing bounds"),
        ({"passes": 2, "method": "paper"}, r"Paper\(\) has no argument 'passes'"),
        (
            {"lipschitz": None, "method": "paper", "horizon": 5},
            "nothing bounds a record's gradient",
        ),
        ({"lipschitz": None, "method": "klt"}, "lipschitz must be a finite number"),
        (
            {"records": None, "tolerance": 0.5, "method": "paper", "gap": None},
            "a tolerance needs lipschitz and gap",
        ),
        ({"records": 1, "horizon": 2, "method": "paper"}, "one round of horizon 2 needs 4 records"),
        ({"records": 10, "rounds": 9, "horizon": 2, "method": "paper"}, "9 rounds of 4 records"),
        ({"gap": 0.0}, "gap must be above 0"),
        ({"radius": 1e40}, "radius must lie between 1e-30 and 1e\\+30"),
        ({"bounds": 1.0}, r"bounds must be blindstep\.Bounds.*got 1\.0"),
        ({"privacy": 1.0}, r"privacy must be a budget such as.*got 1\.0"),
        ({"estimate": "slopes"}, "estimate must be one of values, gradient"),
        ({"learner": 3}, "learner must be a learner such as"),
        (
            {"sampler": "nobodys"},
            "no sampler .*import the module that defines it first",
        ),
        ({"mechanism": "nobodys"}, "import the module that defines it first"),
        ({"mechanism": "magic"}, "no mechanism 'magic'"),
        ({"sharing": "batch"}, "sharing must be one of record, block"),
        ({"oracle": "naive", "period": 4}, "naive oracle cannot have period 4"),
        ({"oracle": "variance-reduced", "period": 1}, "oracle cannot have period 1"),
        ({"period": 2**23, "horizon": 2**23, "records": 10**9}, "a block of 8388608 releases"),
    ],
)
def test_requests_that_cannot_be_planned(wrong, says):
    with pytest.raises(InvalidArgument, match=says):
        plan_of(**{**PROBLEM, "records": 10**6, **wrong})


def test_typos_are_answered_in_the_words_of_what_was_called():
    class Machine:
        @answers_typos
        def __init__(self, *, horizon: int = 1) -> None:
            self.horizon = horizon

    assert Machine(horizon=3).horizon == 3
    with pytest.raises(InvalidArgument, match=r"Machine\(\) has no argument 'horzon'.*'horizon'"):
        Machine(horzon=3)
    # Editors still complete: the signature and the words are those of the function itself.
    assert "lipschitz" in inspect.signature(Tight).parameters
    assert "tolerance" in inspect.signature(plan).parameters
    assert "Plan a run" in (plan.__doc__ or "")


# -- from a tolerance to records --------------------------------------------------------------


@pytest.mark.parametrize("method", ["paper", pytest.param("klt", marks=pytest.mark.slow)])
def test_records_and_tolerance_are_inverse(method):
    arguments = {**PROBLEM, "dim": 5, "method": method}
    wanted = plan_of(**arguments, tolerance=0.5)
    assert wanted.tolerance <= 0.5
    assert plan_of(**arguments, records=wanted.records) == wanted
    assert plan_of(**arguments, records=int(wanted.records * 0.99)).tolerance > 0.5


@pytest.mark.slow
def test_records_and_tolerance_are_inverse_in_method_tight():
    wanted = plan_of(**PROBLEM, tolerance=0.2)
    assert wanted.records == pytest.approx(1_511_424, rel=2e-3)  # as in 0.1
    assert wanted.tolerance <= 0.2
    assert "one more record" in wanted.explain()


def test_the_message_says_when_the_cap_on_releases_stopped_the_search(monkeypatch):
    # The theorem's horizon is one block: past the longest block more records do not help.
    monkeypatch.setattr(schedule, "MOST_RELEASES_IN_A_BLOCK", 2**10)
    with pytest.raises(
        VacuousPlan, match=r"Records are not what is missing: a block of \d+ releas"
    ):
        plan_of(**PROBLEM, method="paper", tolerance=1e-3)
    # Where fewer records than that do, they are found.
    assert plan_of(**{**PROBLEM, "dim": 1}, method="paper", tolerance=0.5).horizon <= 2**10


def test_the_most_records_are_tried_before_giving_up(monkeypatch):
    monkeypatch.setattr(planner, "_MOST_RECORDS", 10**4)
    with pytest.raises(VacuousPlan, match=r"up to 1e\+04 .* blocks of at most 4194304 and runs of"):
        plan_of(**PROBLEM, method="klt", tolerance=1e-6)
