"""scikit-learn's estimators: its own checks, what they learn, and what they say about privacy."""

import importlib
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

from blindstep.errors import InvalidArgument
from blindstep.sklearn import PrivateClassifier, PrivateRegressor
from blindstep.sklearn.models import REGRESSION

RNG = np.random.default_rng(0)
X = RNG.normal(size=(5_000, 4))
SLOPE = np.array([1.0, -1.0, 0.5, 0.0])
NOISY = X @ SLOPE + 0.3 * RNG.normal(size=5_000)
SIDES = np.where(NOISY > 0, "yes", "no")
FEW = slice(0, 60)


@parametrize_with_checks([PrivateClassifier(passes=10), PrivateRegressor(passes=10)])
@pytest.mark.filterwarnings("ignore")  # the checks make warnings on purpose
def test_scikit_learns_own_checks(estimator, check, monkeypatch):
    # Without it, scikit-learn skips its check of inputs that follow the array API.
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")
    check(estimator)


def distance(scores, label):
    """A loss that the package does not have: how much the best class is ahead, at most 2."""
    return jnp.minimum(jnp.max(scores) - scores[label], 2.0)


@pytest.mark.parametrize("loss", ["logistic", "hinge", "zero-one", distance])
def test_a_linear_classifier_learns_at_epsilon_2(loss):
    model = PrivateClassifier(epsilon=2, loss=loss, passes=40, reach=0.2).fit(X, SIDES)
    assert model.score(X, SIDES) > 0.88  # chance: 0.5; labels are noisy, the true slope has 0.94
    assert model.privacy_.epsilon <= 2
    assert not model.privacy_.seeded
    assert list(model.classes_) == ["no", "yes"]
    assert hasattr(model, "predict_proba") == (loss == "logistic")


def test_a_network_learns_what_no_line_can():
    corners = (X[:, 0] * X[:, 1] > 0).astype(int)
    model = PrivateClassifier(epsilon=8, hidden=(8,), classes=[0, 1], passes=80, random_state=0)
    model.fit(X[:, :2], corners)
    assert model.score(X[:, :2], corners) > 0.8
    assert [weights.shape for weights in model.coefs_] == [(2, 8), (8, 1)]


def test_several_classes():
    thirds = np.digitize(X @ SLOPE, [-0.6, 0.6])
    model = PrivateClassifier(epsilon=4, classes=(0, 1, 2, 3), passes=80, reach=0.2)
    assert model.fit(X, thirds).score(X, thirds) > 0.6  # chance: about 0.35
    assert list(model.classes_) == [0, 1, 2, 3]  # the last has no row, but was declared
    assert model.decision_function(X[FEW]).shape == (60, 4)
    np.testing.assert_allclose(model.predict_proba(X[FEW]).sum(axis=1), 1.0)


def test_regression_learns_at_epsilon_2():
    model = PrivateRegressor(epsilon=2, passes=40, reach=0.2).fit(X, NOISY)
    assert model.score(X, NOISY) > 0.8  # R^2; at most about 0.96


def test_in_a_pipeline_with_a_public_scaler():
    model = make_pipeline(
        FunctionTransformer(lambda rows: rows / 4.0), PrivateClassifier(passes=10, random_state=0)
    )
    assert set(model.fit(X[FEW], SIDES[FEW]).predict(X)) <= {"no", "yes"}


def test_squared_loss_is_half_the_square():
    assert REGRESSION["squared"](jnp.float32(3.0), jnp.float32(1.0)) == 2.0
    assert REGRESSION["absolute"](jnp.float32(1.0), jnp.float32(3.0)) == 2.0


def test_a_random_state_is_not_private_and_says_so():
    first, again = (
        PrivateClassifier(passes=10, random_state=3).fit(X[FEW], SIDES[FEW]) for _ in range(2)
    )
    np.testing.assert_array_equal(first.coefs_[0], again.coefs_[0])
    assert "NOT private" in str(first.privacy_)
    fresh = [PrivateClassifier(passes=10).fit(X[FEW], SIDES[FEW]) for _ in range(2)]
    assert np.all(fresh[0].coefs_[0] != fresh[1].coefs_[0])
    assert "NOT private" not in str(fresh[0].privacy_)


def test_only_the_weights_depend_on_a_row():
    """A neighbouring data set, with the most hostile row there is, changes nothing else."""
    model = PrivateClassifier(passes=10, random_state=3, classes=["no", "yes"])
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
        ({"passes": 0}, "passes must be a whole number"),
        ({"smoothing": 0.0}, "smoothing must be above 0"),
    ],
)
def test_what_cannot_be_used_is_said(given, says):
    with pytest.raises(InvalidArgument, match=says):
        PrivateClassifier(**given).fit(X[FEW], SIDES[FEW])


def test_without_scikit_learn_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.delitem(sys.modules, "blindstep.sklearn")
    with pytest.raises(ImportError, match=r"pip install 'blindstep\[sklearn\]'"):
        importlib.import_module("blindstep.sklearn")
