"""scikit-learn's estimators: its own checks, what they learn, and what they say about privacy."""

import importlib
import sys
import warnings

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

from blindstep.errors import BudgetExceeded, ClassesFromData, InvalidArgument
from blindstep.ledger.budget import Privacy
from blindstep.ledger.ledger import read_ledger
from blindstep.losses.pytrees import ParameterSpace
from blindstep.planning.auto import Auto
from blindstep.planning.planner import plan as make_plan
from blindstep.planning.statement import round_up, statement
from blindstep.private import accounting
from blindstep.private.noise import fresh_keys
from blindstep.run.minimize import minimize
from blindstep.run.result import History, Result
from blindstep.sklearn import PrivateClassifier, PrivateRegressor, models
from blindstep.sklearn.models import REGRESSION

RNG = np.random.default_rng(0)
X = RNG.normal(size=(5_000, 4))
SLOPE = np.array([1.0, -1.0, 0.5, 0.0])
NOISY = X @ SLOPE + 0.3 * RNG.normal(size=5_000)
SIDES = np.where(NOISY > 0, "yes", "no")
FEW = slice(0, 60)
BOTH = ["no", "yes"]


# A fit of little work, where how good it is does not matter.
LITTLE = 2**14


def no_run(loss, params, records, privacy, *, method, seed, **storage):
    """What a run returns, without the run: weights that no record had a part in."""
    space, number = ParameterSpace.of(params), len(records["target"])
    plan = make_plan(method, dim=space.dim, records=number, privacy=privacy)
    mean, zeros = np.linspace(-1, 1, space.dim), np.zeros((plan.rounds, plan.horizon))
    said = statement(plan.terms, plan.delta, seeded=seed is not None)
    history = History(zeros, zeros)
    return Result(space.unflatten(mean), 0, mean[None], said, plan, history, space)


@pytest.mark.parametrize("really", [False, pytest.param(True, marks=pytest.mark.slow)])
@parametrize_with_checks(
    [
        PrivateClassifier(method=Auto(evaluations=LITTLE)),
        PrivateRegressor(method=Auto(evaluations=LITTLE)),
    ]
)
@pytest.mark.filterwarnings("ignore")  # the checks make warnings on purpose
def test_scikit_learns_own_checks(estimator, check, really, monkeypatch):
    """They are about the interface: each new shape of data would compile a run of its own."""
    if not really:
        monkeypatch.setattr("blindstep.sklearn.estimators.minimize", no_run)
    # Without it, scikit-learn skips its check of inputs that follow the array API.
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")
    check(estimator)


def ramp(scores, label):
    """A loss that the package does not have, and not convex: the hinge, at most 2."""
    return jnp.minimum(models.hinge(scores, label), 2.0)


SLOW = [pytest.param(each, marks=pytest.mark.slow) for each in ("hinge", ramp)]


@pytest.mark.parametrize("loss", ["logistic", "zero-one", *SLOW])
def test_a_linear_classifier_learns_at_epsilon_2(loss):
    model = PrivateClassifier(epsilon=2, loss=loss, classes=BOTH)
    model.fit(X, SIDES)
    # Chance: 0.5; labels are noisy, the true slope has 0.94. Of 20 fits the worst had 0.936.
    assert model.score(X, SIDES) > 0.9
    assert model.privacy_.epsilon <= 2
    assert not model.privacy_.seeded
    assert list(model.classes_) == BOTH
    assert hasattr(model, "predict_proba") == (loss == "logistic")


@pytest.mark.slow
def test_a_network_learns_what_no_line_can():
    corners = (X[:, 0] * X[:, 1] > 0).astype(int)
    model = PrivateClassifier(epsilon=8, hidden=(8,), classes=[0, 1], random_state=0)
    model.fit(X[:, :2], corners)
    assert model.score(X[:, :2], corners) > 0.9
    assert [weights.shape for weights in model.coefs_] == [(2, 8), (8, 1)]


@pytest.mark.slow
def test_several_classes():
    thirds = np.digitize(X @ SLOPE, [-0.6, 0.6])
    model = PrivateClassifier(epsilon=4, classes=(0, 1, 2, 3))
    assert model.fit(X, thirds).score(X, thirds) > 0.9  # chance: about 0.35
    assert list(model.classes_) == [0, 1, 2, 3]  # the last has no row, but was declared
    assert model.decision_function(X[FEW]).shape == (60, 4)
    np.testing.assert_allclose(model.predict_proba(X[FEW]).sum(axis=1), 1.0)


@pytest.mark.slow
def test_regression_learns_at_epsilon_2_in_any_units():
    """Columns of other sizes, each its own, and a target in thousands: no number is for them."""
    rows, target = X * [1.0, 10.0, 0.1, 3.0], 1_000.0 * NOISY
    model = PrivateRegressor(epsilon=2).fit(rows, target)
    assert model.score(rows, target) > 0.9  # R^2; at most about 0.96


@pytest.mark.slow
def test_a_fit_is_the_run_of_four_arguments_and_keeps_to_its_evaluations():
    model = small(random_state=3)
    plan = model.result_.plan
    assert plan.method == "auto"
    assert plan.calibrations > 0
    assert plan.evaluations <= LITTLE
    assert small(method=Auto(evaluations=LITTLE // 2)).result_.plan.evaluations <= LITTLE // 2
    assert model.n_iter_ == plan.rounds * plan.horizon
    layers, records = models.start([4, 1]), X[FEW].astype(np.float32)
    labels = (SIDES[FEW] == "yes").astype(np.int32)
    run = minimize(
        models.record_loss(models.logistic, classifies=True),
        layers,
        {"features": records, "target": labels},
        Privacy(epsilon=1, delta=1e-5),
        method=Auto(evaluations=LITTLE),
        seed=3,
    )
    np.testing.assert_array_equal(model.coefs_[0], run.params[0][0])


def test_no_knob_of_tuning_is_left():
    public = {"epsilon", "delta", "loss", "hidden", "method", "rows", "random_state"}
    kept = {"checkpoint", "ledger", "budget", "scales", "categories"}
    assert set(PrivateRegressor().get_params()) == public | kept
    assert set(PrivateClassifier().get_params()) == public | kept | {"classes", "class_weight"}


def test_in_a_pipeline_with_a_public_scaler():
    scaler = FunctionTransformer(lambda rows: rows / 4.0)
    model = make_pipeline(scaler, PrivateClassifier(classes=BOTH, method=Auto(evaluations=LITTLE)))
    assert set(model.fit(X[FEW], SIDES[FEW]).predict(X)) <= set(BOTH)


def test_squared_loss_is_half_the_square():
    assert REGRESSION["squared"](jnp.float32(3.0), jnp.float32(1.0)) == 2.0
    assert REGRESSION["absolute"](jnp.float32(1.0), jnp.float32(3.0)) == 2.0


def small(**given):
    given = {"method": Auto(evaluations=LITTLE), "classes": BOTH, **given}
    return PrivateClassifier(**given).fit(X[FEW], SIDES[FEW])


def test_a_random_state_is_not_private_and_says_so():
    first, again = small(random_state=3), small(random_state=3)
    np.testing.assert_array_equal(first.coefs_[0], again.coefs_[0])
    assert "NOT private against anyone who knows or can guess the seed" in str(first.privacy_)
    fresh = [small() for _ in range(2)]
    # Coefficients may be the start, and so is the first point.
    assert np.all(fresh[0].result_.means[1:] != fresh[1].result_.means[1:])
    assert "NOT private" not in str(fresh[0].privacy_)


def test_a_seed_is_as_long_as_what_it_comes_from(monkeypatch):
    """A whole number is taken whole, a generator gives 128 bits; none stays none."""
    seen, session = [], sys.modules["blindstep.ledger.session"]
    keys = lambda seed, about: seen.append(seed) or fresh_keys(seed, about)  # noqa: E731
    monkeypatch.setattr(session, "fresh_keys", keys)
    for state in (2**200 + 1, np.random.RandomState(0), np.random.RandomState(0), None):
        small(random_state=state)
    # Each run has three gates, and a number of its own for the ledger's; the steps' gate is the second.
    seen = seen[1::3]
    assert seen[0] == 2**200 + 1
    assert seen[1] == seen[2] < 2**128
    assert seen[1].bit_length() > 100
    assert seen[3] is None


def test_labels_taken_from_the_data_are_public_and_that_is_said():
    with pytest.warns(ClassesFromData, match="gives that row away: give all labels"):
        model = small(classes=None)
    assert "the set of labels in y is not: it was taken from the data" in str(model.privacy_)
    assert model.result_.privacy == model.privacy_
    with warnings.catch_warnings(action="error", category=ClassesFromData):
        assert "labels" not in str(small().privacy_)


def test_fits_share_a_ledger_and_its_budget(tmp_path):
    shared = {"ledger": tmp_path / "people.jsonl", "budget": Privacy(epsilon=1.2)}
    small(epsilon=1.0, **shared)
    with pytest.raises(BudgetExceeded, match="nothing was released"):
        small(epsilon=1.0, **shared)


def test_a_search_ends_in_a_statement_of_all_its_fits(tmp_path):
    """Three fits, of which one is handed over: with a ledger its statement has the sum."""
    everybody = np.arange(len(X[FEW]))
    model = PrivateClassifier(
        method=Auto(evaluations=LITTLE), classes=BOTH, ledger=tmp_path / "people.jsonl", delta=1e-5
    )
    search = GridSearchCV(model, {"epsilon": [0.9, 1.0]}, cv=[(everybody, everybody)])
    found = search.fit(X[FEW], SIDES[FEW]).best_estimator_.privacy_
    spent = read_ledger(tmp_path / "people.jsonl").spent()
    assert spent**2 > 2.5 * found.mu**2
    together = round_up(accounting.epsilon(spent, 1e-5))
    assert f"All fits in people.jsonl together have spent epsilon {together} at" in str(found)


def test_without_a_ledger_a_fit_says_that_others_come_on_top():
    assert "of this fit alone. Every other fit on the same rows, those of a search" in str(
        small().privacy_
    )


@pytest.mark.parametrize("hidden", [(), (3,)])
def test_a_finished_fit_costs_nothing_more(tmp_path, hidden):
    first = small(hidden=hidden, checkpoint=tmp_path / "run")
    spent = (tmp_path / "run" / "ledger.jsonl").read_bytes()
    again = small(hidden=hidden, checkpoint=tmp_path / "run")
    np.testing.assert_array_equal(first.coefs_[-1], again.coefs_[-1])
    assert (tmp_path / "run" / "ledger.jsonl").read_bytes() == spent


def test_only_the_weights_depend_on_a_row():
    """A neighbouring data set, with the most hostile row there is, changes nothing else."""
    model = PrivateClassifier(method=Auto(evaluations=LITTLE), random_state=3, classes=BOTH)
    before = model.fit(X[FEW], SIDES[FEW])
    plan, classes = before.result_.plan, before.classes_
    rows, labels = X[FEW].copy(), SIDES[FEW].copy()
    rows[7], labels[7] = 1e30, "no"
    after = model.fit(rows, labels)
    assert after.result_.plan == plan
    np.testing.assert_array_equal(after.classes_, classes)
    assert np.all(np.isfinite(after.coefs_[0]))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"loss": "log"}, "loss must be one of 'logistic', 'hinge', 'zero-one' or a function"),
        ({"hidden": 16}, r"\(16,\) is one hidden layer"),
        ({"hidden": (0,)}, "hidden must be a whole number of at least 1"),
        ({"classes": ["no"]}, "classes has one class"),
        ({"classes": ["no", "Yes"]}, "a label that is not in classes"),
        ({"epsilon": 0}, "epsilon must be above 0"),
        ({"method": "auto"}, r"method must be a method such as Auto\(\)"),
    ],
)
def test_what_cannot_be_used_is_said(given, says):
    with pytest.raises(InvalidArgument, match=says):
        small(**given)


def test_without_scikit_learn_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.delitem(sys.modules, "blindstep.sklearn")
    with pytest.raises(ImportError, match=r"pip install '\.\[sklearn\]'"):
        importlib.import_module("blindstep.sklearn")
