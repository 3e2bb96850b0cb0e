"""The estimators: scikit-learn's interface around one private run.

`blindstep.minimize` trains, with nothing but a budget: the run itself finds the scale of the loss, of
each weight and of its steps, inside its budget (docs/self-scaling.md).

What is private, and what is not. `blindstep.minimize` computes the weights: replacing one row of
(X, y), or all rows of one person, changes their distribution by no more than `privacy_` says.
Everything else that a model takes from the data counts as *public*: the number of rows (given
`people`: who they are), the number and names of columns, and, unless `classes` is given, the set of
labels that occur. Errors about the input (a missing value, a label that is not in `classes`) are for
the data holder's eyes.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import KW_ONLY
from numbers import Integral
from typing import Any, TypeVar, dataclass_transform, no_type_check

import numpy as np
from jaxtyping import Float, Shaped
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    check_consistent_length,
    check_is_fitted,
    check_X_y,
    validate_data,
)

from blindstep.errors import ClassesFromData, InvalidArgument, answers_typos, warn
from blindstep.insight.tables import read_spending, spending_numbers
from blindstep.ledger.budget import Privacy
from blindstep.losses.data_frames import encode
from blindstep.losses.people import People
from blindstep.planning.method import Method
from blindstep.planning.statement import round_up
from blindstep.run.minimize import minimize
from blindstep.run.value import Value, value
from blindstep.sklearn import models

_Model = TypeVar("_Model")


@dataclass_transform(eq_default=False)
def _parameters(cls: type[_Model]) -> type[_Model]:
    """A constructor that keeps the parameters as they are given, made from the fields.

    scikit-learn's rule: a constructor takes anything, `fit` checks it.
    """
    made: Any = dataclasses.dataclass(eq=False, repr=False)(cls)
    made.__init__ = answers_typos(no_type_check(made.__init__))
    return made


# What to do instead of giving what other estimators take.
_INSTEAD = {
    "sample_weight": "a weight is a number about a person, and one above 1 would be cut by the clip. "
    "Put it into the data, and into a loss of your own with blindstep.minimize.",
}
_fits = functools.partial(answers_typos, instead=_INSTEAD)


@_parameters
class _PrivateModel(BaseEstimator):
    """What both estimators share: parameters and the run."""

    epsilon: float = 1.0
    delta: float = 1e-5
    _: KW_ONLY
    loss: str | Callable[..., Any] = "absolute"
    hidden: tuple[int, ...] = ()
    scales: Mapping[str, tuple[float, float]] | None = None
    categories: Mapping[str, Sequence[Hashable]] | None = None
    method: Method | None = None
    rows: int | None = None
    random_state: Any = None
    checkpoint: str | os.PathLike[str] | None = None
    ledger: str | os.PathLike[str] | None = None
    budget: Privacy | None = None

    def _train(
        self,
        features: Float[np.ndarray, "rows columns"],
        target: Shaped[np.ndarray, " rows"],
        judge: Callable[..., Any],
        out: int,
        people: Any,
        public: str = "",
        weights: tuple[float, ...] = (),
    ) -> None:
        """Make one private run and set the fitted attributes.

        `public` is added to the privacy statement where it says what is protected. `weights` are of
        the classes, where they do not all weigh 1.
        """
        sizes = models.layer_sizes(features.shape[1], self.hidden, out)
        initial = models.start(sizes)
        with np.errstate(over="ignore"):  # a warning would tell that a cell is huge
            records = {"features": np.asarray(features, np.float32), "target": target}
            if target.dtype.kind == "f":
                records["target"] = np.asarray(target, np.float32)
        loss = models.record_loss(judge, isinstance(self, ClassifierMixin), weights)
        result = minimize(
            loss,
            initial,
            records,
            Privacy(epsilon=self.epsilon, delta=self.delta),
            method=self.method,
            people=self._whose(people),
            seed=_seed(self.random_state),
            progress=False,  # as quiet as scikit-learn's own fits
            checkpoint=self.checkpoint,
            ledger=self.ledger,
            budget=self.budget,
        )
        self.privacy_ = dataclasses.replace(
            result.privacy,
            unit=result.privacy.unit + public,
            released=f"{result.privacy.released}; of this fit alone. {self._other_fits()}",
        )
        self.result_ = dataclasses.replace(result, privacy=self.privacy_)
        layers = [[np.asarray(part, np.float64) for part in pair] for pair in self.result_.params]
        self.coefs_ = [weights for weights, _ in layers]
        self.intercepts_ = [bias for _, bias in layers]
        self.n_iter_ = result.plan.rounds * result.plan.horizon

    def _whose(self, people: Any) -> People | None:
        slots = {} if self.rows is None else {"rows": self.rows}
        return None if people is None else People(people, **slots)

    def private_error(self, X: Any, y: Any, privacy: Privacy, people: Any = None) -> Value:
        """The share of wrong labels on private rows, or the mean absolute error, with its own noise.

        It spends `privacy` beside what the fit spent; `ledger` and `budget` are those of the estimator.
        A `score` on private rows is an exact figure about them, which nothing protects.
        """
        model: Any = self  # each of the two has a `predict`
        found, right = model.predict(X), np.asarray(y)
        check_consistent_length(found, right)
        classifies = isinstance(self, ClassifierMixin)
        errors = (found != right).astype(float) if classifies else np.abs(found - right)
        return value(
            models.itself,
            np.zeros(1),
            errors,
            privacy,
            largest=1.0 if classifies else None,
            people=self._whose(people),
            ledger=self.ledger,
            budget=self.budget,
        )

    def _other_fits(self) -> str:
        """What this statement leaves out: a search makes many fits, and hands over one of them."""
        kept = self.ledger or self.checkpoint
        if kept is None:
            return (
                "Every other fit on the same rows, those of a search included, spends its own epsilon "
                "besides; with a ledger they are added up"
            )
        spent = spending_numbers(read_spending(kept), self.delta)
        return (
            f"All fits in {os.path.basename(os.path.abspath(kept))} together have spent epsilon "
            f"{round_up(spent['epsilon'])} at delta {spent['delta']:g} (mu {round_up(spent['mu'])})"
        )

    def _given(self, X: Any, y: Any = "no_validation", **check: Any) -> Any:
        """The features of X, checked, and y if there is one: X as it is, or its columns encoded."""
        if self.scales is None and self.categories is None:
            try:
                return validate_data(self, X, y, dtype=np.float64, **check)
            except ValueError as error:
                if "could not convert string" in str(error):
                    raise InvalidArgument(models.WORDS) from None  # its message has a person's cell
                if "X contains NaN" not in str(error):
                    raise
            raise InvalidArgument(
                f"Input X contains NaN. {type(self).__name__} takes a missing number as its column's "
                "centre where you give scales={'column': (centre, size)}, from public knowledge. (An "
                "imputer that is fitted on private rows would be a release of its own.)"
            )
        numeric = bool(check.pop("y_numeric", False))
        validate_data(self, X, skip_check_array=True, **check)
        features = encode(X, scales=self.scales, categories=self.categories)["features"]
        if isinstance(y, str):  # scikit-learn's word for no target
            return np.asarray(features, np.float64)
        features, y = check_X_y(features, y, y_numeric=numeric)
        return np.asarray(features, np.float64), y

    @property
    def coef_(self) -> Any:
        """The weights of a linear model, as scikit-learn's linear models have them."""
        return self._linear("coef_", self.coefs_[0].T if len(self.coefs_) == 1 else None)

    @property
    def intercept_(self) -> Any:
        """The biases of a linear model."""
        return self._linear("intercept_", self.intercepts_[0] if len(self.coefs_) == 1 else None)

    def _linear(self, name: str, found: np.ndarray | None) -> Any:
        if found is None:
            raise AttributeError(f"no {name}: hidden layers have coefs_ and intercepts_.")
        return found if isinstance(self, ClassifierMixin) else found[0]

    def _outputs(self, X: Any) -> Float[np.ndarray, "rows outputs"]:
        check_is_fitted(self)
        features = self._given(X, reset=False)
        layers = list(zip(self.coefs_, self.intercepts_, strict=True))
        return models.outputs(layers, features, np.maximum)


def _seed(random_state: Any) -> int | None:
    """The seed of a fit: a whole number as it is, or 128 bits drawn from a generator.

    None stands for entropy of the operating system, not for NumPy's global generator.
    """
    if random_state is None or isinstance(random_state, Integral):
        return None if random_state is None else int(random_state)
    words = check_random_state(random_state).randint(2**32, size=4, dtype=np.uint32)
    return int.from_bytes(words.tobytes(), "little")


def _has_probabilities(model: Any) -> bool:
    """Only the logistic loss makes probabilities of scores."""
    return model.loss == "logistic"


@_parameters
class PrivateClassifier(ClassifierMixin, _PrivateModel):
    """A private linear or small ReLU classifier, trained from values of any per-record loss.

    Features may be of any size: the run finds their scales, out of its budget. Where features are
    scaled all the same, it must be with *public* constants: a scaler fitted on the private rows
    releases their mean and spread without noise. The same holds for any other step of a pipeline, and
    for a search over hyper-parameters: each fit spends its own epsilon (a `ledger` adds them up). A
    score on the rows that were trained on is not private either: keep public rows for it.

    Attributes:
        epsilon: privacy of one fit, for replacing one row; given `people`, all rows of one person.
        delta: of (epsilon, delta)-DP; choose it well below 1 / rows, or 1 / people.
        loss: "logistic", "hinge", "zero-one" (the share of errors itself), or a JAX function of the
            scores of all classes and the index of the right one. Of two classes, the first has
            score 0.
        hidden: sizes of hidden layers; () is a linear model.
        classes: all labels there may be. Left out, they are those that occur in `y`: a label that one
            row alone has gives that row away. `fit` warns (`ClassesFromData`), `privacy_` says so.
        scales: for columns of numbers in a data frame, {"age": (centre, size)}, from public knowledge:
            they become (value - centre) / size, and a missing number counts as its centre.
        categories: for columns of words, {"job": ["cook", "clerk"]}, the list of those that there may
            be; one that is missing or not in it counts as none. With either, columns that neither
            names are left out (`blindstep.encode`).
        class_weight: {label: how much its losses count}, from public knowledge; 1 for one that is not
            named. "balanced" would count the labels, which is a release.
        method: how a fit is made, such as Auto(evaluations=2**20) for how much work it may be. Left
            out, about what a laptop does in a minute, and less where that is no better.
        rows: how many rows of a person are used at most where `fit` is given `people`; default 8.
        random_state: leave it out, and the noise is from the operating system. A whole number of any
            size, or a RandomState, makes a fit reproducible and *not private against anyone who knows
            or can guess the seed*; `privacy_` says so.
        checkpoint: a directory for the run: the same fit goes on after a crash where it was. It holds
            the noise key: keep it as secret as the data.
        ledger: a file in which all fits on the same people add up what they spend.
        budget: what all fits in the ledger together may spend, such as Privacy(epsilon=4): a fit that
            would spend more is refused before it looks at a row.
        classes_: the labels, in order.
        privacy_: the privacy statement of the fit; with `ledger`, also what all fits in it have spent.
        result_: the run itself: how it went (`result_.outcome`), plan, history, scales and the mean of
            every round.
        coefs_: weights of each layer, inputs x outputs; two classes have one output.
        intercepts_: biases of each layer.
        coef_: the weights of a linear model, outputs x inputs; `intercept_` its biases.
        n_iter_: steps taken.
        n_features_in_: columns of X.
    """

    _: KW_ONLY
    loss: str | Callable[..., Any] = "logistic"
    classes: Sequence[Any] | None = None
    class_weight: Mapping[Any, float] | None = None

    @_fits
    def fit(self, X: Any, y: Any, people: Any = None) -> PrivateClassifier:
        """Train privately on rows X with labels y. One row of (X, y) is one person.

        Unless `people` has an identifier for each row: then a person is one record, with at most
        `rows` of their rows. Through a pipeline: `fit(X, y, privateclassifier__people=...)`.
        """
        judge = models.chosen_loss(self.loss, models.CLASSIFICATION)
        X, y = self._given(X, y)
        check_classification_targets(y)
        known = np.unique(y) if self.classes is None else np.unique(np.asarray(self.classes))
        if len(known) < 2:
            where = "y" if self.classes is None else "classes"
            raise InvalidArgument(
                f"{where} has one class, and a classifier needs two: give all labels that there may "
                "be as classes=[...]."
            )
        if self.classes is not None and not np.all(np.isin(y, known)):
            raise InvalidArgument(
                "y has a label that is not in classes: give all labels that there may be, of the "
                f"type that y has ({np.asarray(y).dtype})."
            )
        weights = models.weights_of(self.class_weight, known)
        self.classes_ = known
        index = np.searchsorted(known, y).astype(np.int32)
        public = ""
        if self.classes is None:
            public = " (the set of labels in y is not: it was taken from the data without noise)"
            warn(
                "classes was not given, so the labels that occur in y are taken from the data without "
                "noise, and a label that one row alone has gives that row away: give all labels that "
                "there may be as classes=[...].",
                ClassesFromData,
            )
        out = 1 if len(known) == 2 else len(known)
        self._train(X, index, judge, out, people, public, weights)
        return self

    def decision_function(self, X: Any) -> Float[np.ndarray, "rows ..."]:
        """The score of each class; of two classes, that of the second alone."""
        given = self._outputs(X)
        return given[:, 0] if given.shape[1] == 1 else given

    def predict(self, X: Any) -> Shaped[np.ndarray, " rows"]:
        """The label of the highest score."""
        given = self._outputs(X)
        best = given[:, 0] > 0 if given.shape[1] == 1 else np.argmax(given, axis=1)
        return self.classes_[np.asarray(best, int)]

    @available_if(_has_probabilities)
    def predict_proba(self, X: Any) -> Float[np.ndarray, "rows classes"]:
        """The probability of each class: softmax of the scores. For loss="logistic" only."""
        given = self._outputs(X)
        scores = np.hstack([np.zeros_like(given), given]) if given.shape[1] == 1 else given
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        # With a hundred rows no private model is good; the checks' thresholds assume one that is.
        tags.classifier_tags.poor_score = True
        return tags


class PrivateRegressor(RegressorMixin, _PrivateModel):
    """A private linear or small ReLU regression, trained from values of any per-record loss.

    Features and target may be of any size; see `PrivateClassifier` for what a pipeline must not do, and
    for the arguments that are not described here.

    Attributes:
        epsilon: privacy of one fit, for replacing one row.
        delta: of (epsilon, delta)-DP; choose it well below 1 / rows.
        loss: "absolute" (the median), "squared" (the mean), or a JAX function of prediction and target.
        privacy_: the privacy statement of the fit.
        result_: the run itself: how it went (`result_.outcome`), plan, history, scales and the mean of
            every round.
        coefs_: weights of each layer, inputs x outputs.
        intercepts_: biases of each layer.
        n_iter_: steps taken.
        n_features_in_: columns of X.
    """

    @_fits
    def fit(self, X: Any, y: Any, people: Any = None) -> PrivateRegressor:
        """Train privately on rows X with targets y. One row of (X, y) is one person.

        Unless `people` has an identifier for each row: see `PrivateClassifier.fit`.
        """
        judge = models.chosen_loss(self.loss, models.REGRESSION)
        X, y = self._given(X, y, y_numeric=True)
        self._train(X, np.asarray(y), judge, 1, people)
        return self

    def predict(self, X: Any) -> Float[np.ndarray, " rows"]:
        """The prediction for each row."""
        return self._outputs(X)[:, 0]

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        # With a hundred rows no private model is good; the checks' thresholds assume one that is.
        tags.regressor_tags.poor_score = True
        return tags
