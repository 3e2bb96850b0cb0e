"""Data frames as records: a dict of columns, and from columns to features by public constants.

No library is imported: a frame has `columns` and gives one by its name, and a column has `to_numpy`, as
in pandas and polars.

Guarantee: what a row becomes depends on that row and on the public arguments alone, and no error holds
what is in a cell. That includes dtypes: a library makes floats of whole numbers where one cell is
missing, so every number of a frame is a float64.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, PyTree

from blindstep.errors import InvalidArgument, answers_typos, finite, positive

_FEATURES = "features"


def arrays_of(data: PyTree) -> PyTree:
    """The same records with each frame as a dict of its columns, and each column as an array.

    Numbers, whole ones and truth values too, become float64, and missing ones NaN: with a dtype of
    its own, one missing cell would change everybody's. Missing text becomes "". Arrays stay as they
    are, also on the disk: their dtype is public, as whoever made them said.
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: _arrays("data" + jax.tree_util.keystr(path), leaf), data
    )


def _arrays(where: str, leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray | jax.Array):
        return leaf
    if hasattr(leaf, "columns") and hasattr(leaf, "__getitem__"):
        return {name: _array(f"{where}[{name!r}]", leaf[name]) for name in _names(where, leaf)}
    return _array(where, leaf) if hasattr(leaf, "to_numpy") else leaf


def _names(where: str, frame: Any) -> list[str]:
    """The names of a frame's columns, which are public."""
    names = list(frame.columns)
    if not all(isinstance(name, str) for name in names):
        raise InvalidArgument(
            f"{where} has columns whose names are no text: rename them, as in "
            "frame.columns = ['age', 'job'], since a loss asks for record['age']."
        )
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidArgument(
            f"{where} has more than one column named {', '.join(map(repr, twice))}: rename or drop "
            "all but one."
        )
    return names


def _array(where: str, column: Any) -> np.ndarray:
    array = np.asarray(column.to_numpy() if hasattr(column, "to_numpy") else column)
    if array.dtype.kind in "biuf":
        return array.astype(np.float64)
    if array.dtype.kind not in "OT":
        return array
    cells = array.ravel().tolist()
    there = [cell for cell in cells if not _missing(cell)]
    if all(isinstance(cell, str) for cell in there):
        return np.asarray([cell if isinstance(cell, str) else "" for cell in cells], dtype=str)
    if all(isinstance(cell, numbers.Real | np.bool_) for cell in there):
        return np.asarray([math.nan if _missing(cell) else _float(cell) for cell in cells])
    raise InvalidArgument(
        f"{where} holds neither numbers alone nor text alone: give the column one type, such as "
        "frame[name].astype(float)."
    )


def _float(cell: Any) -> float:
    try:
        return float(cell)
    except OverflowError:  # a whole number above all floats
        return math.nan


def _missing(cell: Any) -> bool:
    """Whether a cell is None, NaN or pandas's NA, which answers no comparison."""
    return cell is None or type(cell).__name__ == "NAType" or cell != cell


@answers_typos
def encode(
    frame: Any,
    *,
    scales: Mapping[str, tuple[float, float]] | None = None,
    categories: Mapping[str, Sequence[Hashable]] | None = None,
) -> dict[str, np.ndarray]:
    """Columns as features of about unit size, by constants that you know without looking at the data.

        data = bs.encode(people, scales={"age": (40, 20)}, categories={"job": ("cook", "clerk")})
        # data["features"]: (age - 40) / 20, job is cook, job is clerk; other columns as they are

    The features are float32, in the order of `scales` and then of the lists in `categories`. A number
    that is missing counts as its centre; a category that is missing or not in its list is 0 in every
    place. Both constants and lists are public. Taken from the data, they would tell something about
    them that no privacy statement counts.

    Args:
        frame: a pandas or polars data frame, or a mapping from names to columns.
        scales: for columns of numbers, (centre, size): a typical value and a typical distance from it.
        categories: for columns of categories, the list of those that there may be.

    Returns:
        A mapping for `minimize`: "features", a matrix with one row for each record, and each column
        that neither argument names: its numbers as float64, an array as it is.

    Raises:
        InvalidArgument: a column that is not there or is named twice, a constant that is no number, or
            a list that is empty or repeats itself.
    """
    scales, categories = dict(scales or {}), dict(categories or {})
    columns = _columns(frame)
    for name in (*categories, *scales):
        if name not in columns:
            there = f"there are {', '.join(columns)}" if columns else "check the names of all"
            raise InvalidArgument(f"there is no column {name!r}: {there}.")
    if both := sorted(scales.keys() & categories.keys()):
        raise InvalidArgument(
            f"column {both[0]!r} is in both scales and categories: numbers have a scale, categories "
            "a list. Leave it out of one."
        )
    if not (scales or categories):
        raise InvalidArgument("no column is to be encoded: give scales, categories or both.")
    rest = {name: column for name, column in columns.items() if name not in {*scales, *categories}}
    if _FEATURES in rest:
        raise InvalidArgument(
            f"a column is named {_FEATURES!r}, as the matrix of features is: rename the column."
        )
    parts = [_scaled(name, columns[name], scale)[:, None] for name, scale in scales.items()]
    parts += [_one_hot(name, columns[name], listed) for name, listed in categories.items()]
    if len({len(part) for part in parts}) > 1:
        raise InvalidArgument("columns differ in length: row i of each belongs to record i.")
    kept = {k: _array(k, c) if isinstance(c, list | tuple) else c for k, c in rest.items()}
    return {_FEATURES: np.concatenate(parts, axis=1), **arrays_of(kept)}


def _columns(frame: Any) -> dict[str, Any]:
    if isinstance(frame, Mapping):
        return dict(frame)
    if not (hasattr(frame, "columns") and hasattr(frame, "__getitem__")):
        raise InvalidArgument(
            f"frame is a {type(frame).__name__}: give a data frame, or a mapping from names to columns."
        )
    return {name: frame[name] for name in _names("frame", frame)}


def _plain(column: Any) -> np.ndarray:
    """The column as an array; a list as an array of whatever it holds."""
    if not isinstance(column, list | tuple):
        return np.asarray(column.to_numpy() if hasattr(column, "to_numpy") else column)
    cells = np.empty(len(column), dtype=object)
    cells[:] = column
    return cells


def _scaled(name: str, column: Any, scale: tuple[float, float]) -> Float[np.ndarray, " rows"]:
    """(value - centre) / size in float32; 0 where there is no finite value."""
    if not isinstance(scale, tuple | list) or len(scale) != 2:
        raise InvalidArgument(
            f"scales[{name!r}] must be (centre, size), such as (40, 20), got {scale!r}."
        )
    centre = finite(f"the centre of scales[{name!r}]", scale[0])
    size = positive(f"the size of scales[{name!r}]", scale[1])
    values = _plain(column)
    if values.dtype.kind == "O":  # such as pandas's whole numbers with missing ones
        cells = values.ravel().tolist()
        values = np.asarray([None if _missing(cell) else cell for cell in cells], dtype=object)
    try:
        numbers = values.astype(np.float64) if values.dtype.kind in "biufO" else None
    except (TypeError, ValueError):
        numbers = None  # its message would hold the cell, which is a person's secret
    if numbers is None or numbers.ndim != 1:
        raise InvalidArgument(
            f"column {name!r} is not one of numbers: give it a list in `categories`, turn dates into "
            "days, or leave it out of `scales`."
        )
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = ((numbers - centre) / size).astype(np.float32)
    return np.where(np.isfinite(scaled), scaled, np.float32(0))


def _one_hot(
    name: str, column: Any, listed: Sequence[Hashable]
) -> Float[np.ndarray, "rows categories"]:
    """1 at the place of each row's category in the list; nowhere if the list does not have it."""
    if isinstance(listed, str) or not len(listed):
        raise InvalidArgument(
            f"categories[{name!r}] must be a list of the categories that there may be, such as "
            f"('yes', 'no'), got {listed!r}."
        )
    places = {category: place for place, category in enumerate(listed)}
    if len(places) < len(listed):
        raise InvalidArgument(f"categories[{name!r}] names a category twice: name each once.")
    found = np.asarray([_place(places, cell) for cell in _plain(column).tolist()], dtype=np.int64)
    return (found[:, None] == np.arange(len(listed))).astype(np.float32)


def _place(places: dict[Hashable, int], cell: Any) -> int:
    """Where a cell's value is in the list; -1 if it is not, also for what can be in no list."""
    try:
        known = not (isinstance(cell, float) and math.isnan(cell))
        return places.get(cell, -1) if known else -1
    except TypeError:
        return -1
