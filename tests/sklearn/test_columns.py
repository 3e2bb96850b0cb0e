"""Categories and missing values inside an estimator, and the names that linear models have."""

import numpy as np
import pandas as pd
import pytest

import blindstep as bs
from blindstep.sklearn import PrivateClassifier, PrivateRegressor

FAST = bs.Auto(evaluations=2**14)


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    made = pd.DataFrame(
        {"age": rng.uniform(20, 80, 2000), "job": rng.choice(["cook", "nurse"], 2000)}
    )
    made["sick"] = np.where(made["age"] + 20 * (made["job"] == "nurse") > 60, "yes", "no")
    made.loc[::10, "age"] = np.nan
    made.loc[5::10, "job"] = None
    return made


@pytest.fixture(scope="module")
def model(table):
    scales, categories = {"age": (50, 20)}, {"job": ["cook", "nurse"]}
    made = PrivateClassifier(
        8, 1e-5, classes=["no", "yes"], scales=scales, categories=categories, method=FAST
    )
    return made.fit(table, table["sick"])


def test_words_and_empty_cells_are_taken_care_of(model, table):
    assert model.score(table, table["sick"]) > 0.8
    assert model.coef_.shape == (1, 3)
    assert model.intercept_.shape == (1,)
    np.testing.assert_array_equal(model.coef_, model.coefs_[0].T)
    encoded = bs.encode(table, scales=model.scales, categories=model.categories)["features"]
    given = encoded.astype(float) @ model.coef_[0] + model.intercept_[0]
    np.testing.assert_allclose(model.decision_function(table), given)


def test_what_a_row_becomes_depends_on_that_row_alone(model, table):
    np.testing.assert_array_equal(
        model.decision_function(table[:7]), model.decision_function(table)[:7]
    )


def test_a_missing_number_without_scales_is_refused_with_what_helps_and_no_imputer_is_advised():
    with pytest.raises(ValueError, match=r"Input X contains NaN.*scales=.*a release of its own"):
        PrivateRegressor().fit([[1.0], [np.nan], [2.0]], [1.0, 2.0, 3.0])


def test_a_regression_has_one_weight_for_each_column_and_layers_have_none():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 2))
    model = PrivateRegressor(8, 1e-5, method=FAST).fit(X, X[:, 0])
    assert model.coef_.shape == (2,)
    assert np.ndim(model.intercept_) == 0
    model.coefs_ = model.coefs_ * 2
    assert not hasattr(model, "coef_")


# -- what other estimators take -------------------------------------------------------------------


def test_a_column_of_words_is_refused_without_a_cell_of_it(table):
    with pytest.raises(bs.errors.InvalidArgument, match=r"categories=.*public list") as caught:
        PrivateClassifier(classes=["no", "yes"]).fit(table[["job"]].fillna("cook"), table["sick"])
    assert "cook" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_a_class_that_weighs_more_is_predicted_more_often(model, table):
    """Public weights multiply the losses of their class, and no count of labels is asked for."""
    given = {"scales": model.scales, "categories": model.categories, "classes": ["no", "yes"]}
    heavy = PrivateClassifier(8, 1e-5, class_weight={"yes": 8.0}, method=FAST, **given)
    found = heavy.fit(table, table["sick"]).predict(table)
    assert np.mean(found == "yes") > np.mean(model.predict(table) == "yes") + 0.02


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ("balanced", "must be a mapping .* a release of its own"),
        ({"maybe": 2.0}, "'maybe', which is not a class: there are"),
        ({"yes": -1.0}, "must be above 0"),
    ],
)
def test_weights_of_classes_are_public_numbers(weights, said):
    with pytest.raises(bs.errors.InvalidArgument, match=said):
        PrivateClassifier(classes=["no", "yes"], class_weight=weights).fit(
            [[0.0], [1.0]], ["no", "yes"]
        )


def test_what_others_take_and_we_do_not_is_answered():
    X = np.zeros((2, 1))
    with pytest.raises(bs.errors.InvalidArgument, match="'sample_weight': a weight is a number"):
        PrivateRegressor().fit(X, [0.0, 1.0], sample_weight=[1, 2])
    with pytest.raises(bs.errors.InvalidArgument, match="did you mean 'epsilon'"):
        PrivateClassifier(epsilonn=2)


def test_an_error_on_private_rows_is_released_with_noise_and_counted(model, table, tmp_path):
    model.ledger = tmp_path / "people.jsonl"
    found = model.private_error(table, table["sick"], bs.Privacy(epsilon=1, delta=1e-5))
    wrong = 1 - model.score(table, table["sick"])
    assert 0 < abs(found.mean - wrong) < 6 * found.std
    assert found.privacy.epsilon == pytest.approx(1, rel=1e-3)
    model.budget = bs.Privacy(epsilon=1.2, delta=1e-5)
    with pytest.raises(bs.errors.BudgetExceeded):
        model.private_error(table, table["sick"], bs.Privacy(epsilon=1, delta=1e-5))
    model.ledger = model.budget = None
