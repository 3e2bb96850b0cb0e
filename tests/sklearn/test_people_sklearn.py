"""Estimators for people with several rows: `fit(X, y, people=...)`."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from blindstep.errors import InvalidArgument
from blindstep.planning.auto import Auto
from blindstep.sklearn import PrivateClassifier, PrivateRegressor

RNG = np.random.default_rng(0)
TOTALS = RNG.integers(1, 9, 1_500)
TOTALS[:3] = 200  # people with a message: every label of theirs is wrong
PEOPLE = RNG.permutation(np.repeat(np.arange(1_500), TOTALS))
X = RNG.normal(size=(len(PEOPLE), 3))
Y = (X @ [1.0, -1.0, 0.5] > 0).astype(int)
Y[PEOPLE < 3] ^= 1
NAMES = np.asarray([f"person {number}" for number in PEOPLE])


def model(kind=PrivateClassifier, **options):
    options = {"epsilon": 4, "method": Auto(evaluations=2**21), "random_state": 0, **options}
    return kind(**({"classes": [0, 1]} if kind is PrivateClassifier else {}) | options)


@pytest.mark.slow
def test_a_classifier_learns_from_people_and_says_so():
    fitted = model().fit(X, Y, people=NAMES)
    new = RNG.normal(size=(2_000, 3))
    assert fitted.score(new, (new @ [1.0, -1.0, 0.5] > 0).astype(int)) > 0.85
    assert fitted.privacy_.unit.startswith("one person (all rows of one identifier")
    assert "at most 8 of them used" in str(fitted.privacy_)
    assert fitted.result_.plan.records == 1_500  # people, not rows
    # As in every driver, people are a matter of the fit, not of what their names look like.
    order = np.unique(NAMES, return_inverse=True)[1]
    again = model().fit(X, Y, people=order)
    np.testing.assert_array_equal(fitted.coefs_[0], again.coefs_[0])


@pytest.mark.slow
def test_a_pipeline_hands_people_on_and_rows_is_a_parameter():
    small = slice(0, 300)
    scaled = make_pipeline(FunctionTransformer(), model(PrivateRegressor, rows=2))
    scaled.fit(X[small], X[small, 0], privateregressor__people=NAMES[small])
    fitted = scaled[-1]
    assert "at most 2 of them used" in fitted.privacy_.unit
    assert fitted.result_.plan.records == len(set(NAMES[small]))
    assert clone(fitted).get_params()["rows"] == 2
    # Without people a row is a record, whatever `rows` says.
    assert fitted.fit(X[small], X[small, 0]).privacy_.unit == "one record"


def test_people_that_do_not_fit_are_refused_without_a_word_of_them():
    with pytest.raises(InvalidArgument, match=r"people has shape \(5,\)") as caught:
        model().fit(X, Y, people=NAMES[:5])
    assert "person " not in str(caught.value)
    with pytest.raises(InvalidArgument, match="rows must be a whole number"):
        model(rows=0).fit(X[:300], Y[:300], people=NAMES[:300])
