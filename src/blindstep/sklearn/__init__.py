"""Private models with scikit-learn's interface: `fit`, `predict`, and what takes part in pipelines.

    from blindstep.sklearn import PrivateClassifier

    model = PrivateClassifier(epsilon=2, delta=1e-5, classes=[0, 1]).fit(X, y)
    print(model.privacy_)

Needs scikit-learn: `pip install '.[sklearn]'` in a copy of the repository.
"""

try:
    import sklearn as _installed  # noqa: F401
except ImportError as error:
    raise ImportError(
        "blindstep.sklearn needs scikit-learn, which is not installed: "
        "pip install '.[sklearn]' in a copy of the repository, or use blindstep.minimize, which "
        "does not."
    ) from error

from blindstep.sklearn.estimators import PrivateClassifier, PrivateRegressor

__all__ = ["PrivateClassifier", "PrivateRegressor"]
