"""Plans in files: what follows from the choices is worked out anew, and must be what the file says."""

import json
import random
import re

import pytest

from blindstep.errors import BlindstepError, InvalidArgument
from blindstep.estimate.bounds import Bounds
from blindstep.ledger.budget import Privacy
from blindstep.planning.auto import Auto
from blindstep.planning.plan import Plan
from blindstep.planning.planner import plan
from blindstep.planning.tight import Tight
from mutations import spoil_bytes, spoil_text
from plans import plan_of

FACTS = {"records": 96, "dim": 2, "radius": 0.5, "lipschitz": 1.0, "gap": 1.0}
PLAN = plan_of(
    **FACTS, privacy=Privacy(mu=1.0), horizon=4, period=4, bounds=Bounds(clip=1.0, diff_clip=0.5)
)

GRADIENTS = plan_of(
    **{"records": 96, "dim": 2, "radius": 0.5, "horizon": 4, "period": 4, "estimate": "gradient"},
    **{
        "privacy": Privacy(mu=1.0),
        "bounds": Bounds(clip=1.0, diff_clip=0.5),
        "first_batch": 8,
        "diff_batch": 4,
    },
)


def edited(**changes):
    return json.dumps({**PLAN.to_dict(), **changes})


@pytest.mark.parametrize(
    "made",
    [
        PLAN,
        plan_of(
            **{**FACTS, "records": 10**4}, privacy=Privacy(epsilon=4), method="paper", horizon=8
        ),
        plan(
            Tight(radius=1, bounds=Bounds(clip=1)), records=100, dim=2, privacy=Privacy(epsilon=1.5)
        ),
        GRADIENTS,
        plan(Auto(estimate="gradient"), records=100, dim=2, privacy=Privacy(epsilon=1.5)),
    ],
)
def test_plans_survive_json(made):
    read = Plan.from_json(made.to_json())
    assert read == made
    assert read.to_dict() == made.to_dict()
    assert read.terms.noise_std == made.terms.noise_std


@pytest.mark.parametrize("estimate", ["values", "gradient"])
def test_a_plan_that_finds_its_own_scales_speaks_no_paper(estimate):
    made = plan(Auto(estimate=estimate), records=5000, dim=2, privacy=Privacy(epsilon=1))
    words = str(made)
    assert not re.search(r"\((K|T|B1|B2|D|eta|delta)\)|GRAD|DIFF|Goldstein|oracle", words)
    assert "(B1)" in str(PLAN)
    assert "Goldstein" in str(PLAN)
    told = {name for name, _, _ in made.rows()}
    assert ("directions" in told) == (estimate == "values")
    assert told.isdisjoint({"diff_batch", "tolerance"})
    assert {"diff_batch", "tolerance"} <= {name for name, _, _ in PLAN.rows()}


@pytest.mark.parametrize(
    "changes",
    [
        {"lipschitz": 1.0}, {"gap": 1.0}, {"bounds": {"range": [0.0, 1.0]}},
        {"estimate": {"kind": "values"}}, {"estimate": {"kind": "slope"}}, {"estimate": "gradient"},
        {"estimate": {"kind": "gradient", "directions": 2}},
    ],
)  # fmt: skip
def test_a_file_with_gradients_has_no_directions_and_no_certificate(changes):
    with pytest.raises(InvalidArgument):
        Plan.from_json(json.dumps({**GRADIENTS.to_dict(), **changes}))


def test_a_file_has_the_choices_and_what_follows_from_them():
    told = PLAN.to_dict()
    assert told["bounds"] == {"lipschitz": 1.0, "clip": 1.0, "diff_clip": 0.5}
    assert (told["privacy"]["mu"], told["delta"], told["epsilon"]) == (1.0, 1e-5, PLAN.epsilon)
    for name in ("noise_std", "mu", "sensitivity", "tolerance", "passes", "oracle", "step"):
        assert told[name] == getattr(PLAN, name)


@pytest.mark.parametrize(
    "changes",
    [
        {"noise_std": 0.9 * PLAN.noise_std},
        {"noise_std": 0.0},
        {"noise_std": "1"},
        {"mu": 0.5},
        {"tolerance": None},
        {"tolerance": 0.01},
        {"vacuous": not PLAN.vacuous},
        {"passes": 2},
        {"oracle": "naive"},
        {"sensitivity": 1e-9},
        {"step": None},
        # A choice that was edited alone gives other numbers.
        {"first_batch": PLAN.first_batch - 1},
        {"bounds": {"clip": 2.0, "diff_clip": 0.5}},
        {"mechanism": "tree"},
    ],
)
def test_a_number_that_does_not_follow_is_refused(changes):
    with pytest.raises(InvalidArgument, match=r"follows from the choices\): make it anew"):
        Plan.from_json(edited(**changes))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{}", "missing"),
        ("[1]", "no JSON object"),
        ("nonsense", "not a plan"),
        (edited(surprise=1), r"unknown \['surprise'\]"),
        (edited().replace('"dim"', '"dam"'), r"missing \['dim'\], unknown \['dam'\]"),
        (edited(notes="x"), "notes cannot be 'x'"),
        (edited(notes=[1]), "notes cannot be 1"),
        (edited(method=3), "method cannot be 3"),
        (edited(bounds={"slope": 1.0}), "bounds cannot be"),
        (edited(dim=2.5), "dim must be a whole number"),
        (edited(dim=True), "dim must be a whole number"),
        (
            edited(estimate=PLAN.to_dict()["estimate"] | {"smoothing": 1e300}),
            "smoothing must lie between",
        ),
        (
            edited(privacy=PLAN.to_dict()["privacy"] | {"epsilon": 1.0}),
            "epsilon 1 is not what mu 1",
        ),
        (
            edited(privacy=PLAN.to_dict()["privacy"] | {"mu": 0.5}),
            "epsilon 4.37718 is not what mu 0.5",
        ),
        (edited(mu=float("nan")), "not a plan"),
        (
            edited(estimate=PLAN.to_dict()["estimate"] | {"sharing": "batch"}),
            "sharing must be one of record, block",
        ),
    ],
)
def test_what_is_no_plan_is_refused(text, says):
    with pytest.raises(InvalidArgument, match=says):
        Plan.from_json(text)


def spoiled_plans(turns):
    """How many of `turns` spoiled plans are read; none of those spends more than it says."""
    rng, content, fields = random.Random(7), PLAN.to_json().encode(), PLAN.to_dict()
    read = 0
    for turn in range(turns):
        spoiled = spoil_text(rng, fields) if turn % 4 else spoil_bytes(rng, content, b"{}")
        try:
            made = Plan.from_json(spoiled.decode(errors="replace"))
        except BlindstepError:
            continue
        read += 1
        assert made.terms.mu() <= made.privacy.mu
    return read


def test_200_spoiled_plans():
    assert spoiled_plans(200) < 40


@pytest.mark.slow
def test_5000_spoiled_plans():
    assert 100 < spoiled_plans(5000) < 1000
