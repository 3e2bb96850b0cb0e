"""What docs/extend.md adds from outside of the package, through every driver that it concerns."""

import dataclasses
import re
from pathlib import Path

import jax
import numpy as np
import pytest

import blindstep as bs
from blindstep.planning.plan import Plan
from blindstep.private.mechanisms import check_mechanism
from driver_runs import DATA, DRIVERS, run

PAGE = Path(__file__).parents[2] / "docs" / "extend.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
SHARED = {"radius": 0.5, "bounds": bs.Bounds(clip=1.0, diff_clip=0.5), "horizon": 4, "reach": 0.1}
SHARED |= {"first_batch": 6, "diff_batch": 2, "directions": 2, "smoothing": 0.25, "passes": 1}


@pytest.fixture(scope="module")
def added():
    """The classes of the page."""
    found = {}
    with jax.enable_x64(True):
        for code in EXAMPLES:
            exec(compile(code, PAGE.name, "exec"), found)
    return found


@pytest.fixture
def methods(added):
    """A method with each of them."""
    return {
        "learner": bs.Tight(**SHARED, period=1, learner=added["HeavyBall"](momentum=0.5)),
        "mechanism": bs.Tight(**SHARED, period=4, mechanism="two-band"),
        "sampler": bs.Tight(**SHARED, period=1, sampler="axes"),
        "method": added["FewSteps"](steps=4),
    }


def test_examples_are_short():
    assert len(EXAMPLES) == 4
    assert all(len(code.strip().splitlines()) <= 30 for code in EXAMPLES)


@pytest.mark.parametrize("kind", ["learner", "mechanism", "sampler", "method"])
def test_drivers_agree_on_what_was_added(methods, kind):
    plan = bs.plan(methods[kind], dim=2, records=len(DATA), privacy=bs.Privacy(mu=1.0))
    assert Plan.from_json(plan.to_json()) == plan
    found = [np.asarray(run(driver, plan=plan).params) for driver in DRIVERS]
    assert np.all(np.isfinite(found))
    np.testing.assert_allclose(found, np.broadcast_to(found[0], (3, 2)), rtol=0, atol=1e-9)


def test_a_mechanism_that_claims_too_little_is_refused(added):
    class Liar(added["TwoBand"]):
        def column_norms(self):
            return np.ones(self.steps)

    with pytest.raises(bs.errors.InvalidArgument):
        check_mechanism(Liar(8))


def test_a_learner_and_a_method_go_through_pytorch(added):
    torch = pytest.importorskip("torch")
    tuning = pytest.importorskip("blindstep.torch")
    data = {"x": np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)}

    def loss(model, batch):
        return (model(batch["x"])[:, 0] - 1.0) ** 2

    method = bs.Auto(evaluations=4000, learner=added["HeavyBall"]())
    model = torch.nn.Linear(3, 1)
    before = model.weight.detach().clone()
    # Without the comparison, which in so much noise gives back the start.
    made = tuning.plan(model, 40, bs.Privacy(epsilon=4, delta=1e-4), method)
    made = dataclasses.replace(made, comparison=None)
    tuning.minimize(model, loss, data, method=made, seed=1)
    assert not torch.equal(before, model.weight)
