"""Records from files: `.npy`, `.npz`, `.csv`, `.parquet`. What a run cannot use is refused at once.

An error names the file, the line and the column, never what is in a cell. Line 1 of a CSV holds names
if none of its cells is a number and all other cells are. Until that is known it may be a person's
record, so errors name columns by number; by name where the caller knows some of those names.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import math
import os
import stat
import warnings
import zipfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from blindstep.errors import InvalidArgument

# Numbers looked at together: what a memory-mapped file needs of memory.
_CHUNK = 2**22


# What stands in a cell for a number that is missing, or for a truth value; in small letters.
_WORDS: dict[str, float] = dict.fromkeys(("", "na", "n/a", "nan", "null", "none"), math.nan)
_WORDS |= {"true": 1.0, "false": 0.0}


def read_data(
    path: Path,
    text: tuple[str, ...] = (),
    gaps: tuple[str, ...] = (),
    spoken: Collection[str] = (),
) -> PyTree:
    """The records in a file. Columns named in `text`, identifiers or categories, may hold text.

    In those named in `gaps` a number may be missing, and is NaN. `spoken` are names of columns that the
    caller has written down: where line 1 has one of them, errors name columns as it does.

    `.npy` gives one array, which stays on the disk; `.npz` a dict of its arrays; `.parquet`, and `.csv`
    with a line of names, a dict of columns; `.csv` without names one array, records x columns.
    """
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise InvalidArgument(
            f"{path} is not a kind of file that can be read: data must be "
            f"{', '.join(_READERS)}, or arrays that the problem file makes itself."
        )
    require_file(path, "data is looked for beside the problem file; give its path from there")
    try:
        return reader(path, text, gaps, spoken)
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror or error}.") from error


def is_data_file(path: Path) -> bool:
    """Whether `read_data` would read it, by its name."""
    return path.suffix.lower() in _READERS


def require_file(path: Path, remedy: str) -> None:
    """Raise unless there is a file that this user can find; say what is in the way."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read ({error.strerror}): {remedy}.") from error
    if not stat.S_ISREG(found.st_mode):
        raise InvalidArgument(f"{path} is not a file: {remedy}.")


def check_finite(data: PyTree) -> None:
    """Raise unless all numbers are finite. What it says is for the data holder's eyes."""
    for where, leaf in jax.tree_util.tree_leaves_with_path(data):
        name = "data" + jax.tree_util.keystr(where)
        if leaf.dtype.kind in "biu":
            continue
        size = max(1, _CHUNK // max(1, leaf[:1].size))
        for start in range(0, len(leaf), size):
            rows = np.asarray(leaf[start : start + size])
            if not np.all(np.isfinite(rows)):
                raise InvalidArgument(
                    f"{name} has missing values (NaN) or infinities: fill them with a constant, or "
                    "drop those records. (Filling with the mean of all records would look at them.)"
                )


def _read_numpy(path: Path, *_: Collection[str]) -> np.ndarray | dict[str, np.ndarray]:
    try:
        stored = np.load(path, mmap_mode="r", allow_pickle=False)
        if isinstance(stored, np.ndarray):
            return stored
        with stored:
            return {name: stored[name] for name in stored.files}
    except (ValueError, zipfile.BadZipFile) as error:
        raise InvalidArgument(
            f"{path} is not a file of plain arrays: it is damaged, or holds Python objects, which are "
            "not read because reading them runs code. Save arrays with numpy.save or savez."
        ) from error


def _read_csv(
    path: Path, text: tuple[str, ...], gaps: tuple[str, ...], spoken: Collection[str]
) -> np.ndarray | dict[str, np.ndarray]:
    with _lines(path) as rows:
        first = [cell.strip() for cell in next(rows, [])]
    if len(first) < 2 and any(mark in "".join(first) for mark in ";\t|"):
        raise InvalidArgument(
            f"{path} seems to be separated by something else than commas: save it with commas, and "
            "with decimal points."
        )
    named = _first_line_is_names(path, first)
    if text and not (named and {*text} <= {*first}):
        return {}  # the caller says that they are not there
    at = tuple(first.index(name) for name in text)
    found = {first[place]: _text_column(path, place, at, len(first)) for place in at}
    numbers = [column for column in range(len(first)) if column not in at]
    if not numbers:
        return found
    known = first if named and {*text, *gaps, *spoken} & {*first} else None  # then they are names
    absent = {place for place, name in enumerate(known or ()) if name in gaps}
    wrong = functools.partial(_what_is_wrong_in, path, named, at, absent, known)
    read = functools.partial(_table, path, int(named), numbers if at else None)
    try:
        try:
            table = read(None)
        except ValueError:  # words among the numbers: reading them takes several times as long
            table = read({c: functools.partial(_number, gap=c in absent) for c in numbers})
    except (ValueError, UnicodeDecodeError):
        # Its message would hold the cell, which is a person's secret.
        raise InvalidArgument(wrong()) from None
    if table.size == 0:
        raise InvalidArgument(f"{path} has no record: give at least one line of numbers.")
    if not named:
        return table
    if len(numbers) != table.shape[1]:
        raise InvalidArgument(wrong())
    return found | {first[c]: np.ascontiguousarray(table[:, j]) for j, c in enumerate(numbers)}


def _table(path: Path, skipped: int, columns: list[int] | None, words: Any) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that there are no lines: the caller says so
        return np.loadtxt(
            path,
            delimiter=",",
            skiprows=skipped,
            ndmin=2,
            encoding="utf-8-sig",
            comments=None,
            quotechar='"',
            usecols=columns,
            converters=words,
        )


def _number(cell: str, gap: bool) -> float:
    """The number in a cell; raises where there is none, and none may be missing."""
    word = _WORDS.get(cell.strip().lower())
    if word is None or (math.isnan(word) and not gap):
        return float(cell)
    return word


def _text_column(path: Path, at: int, text: tuple[int, ...], width: int) -> np.ndarray:
    """The cells of one column as they are, below a line of names; each line must have all columns."""
    with _lines(path) as rows:
        next(rows)
        cells = []
        for row in filter(None, rows):
            if len(row) != width:
                raise InvalidArgument(_what_is_wrong_in(path, True, text, set(), None))
            cells.append(row[at].strip())
    return np.asarray(cells, dtype=str)


@contextlib.contextmanager
def _lines(path: Path) -> Iterator[Any]:
    """The lines of a CSV file as lists of cells."""
    with open(path, newline="", encoding="utf-8-sig") as file:
        try:
            yield csv.reader(file)
        except UnicodeDecodeError as error:
            raise InvalidArgument(f"{path} is not UTF-8 text: save it as CSV UTF-8.") from error


def _first_line_is_names(path: Path, cells: list[str]) -> bool:
    """Whether line 1 holds names: it does if no cell is a number. Numbers and text are refused."""
    numbers = sum(map(_is_number, cells))
    if numbers == len(cells):
        return False
    if "" in cells or len(set(cells)) < len(cells):
        raise InvalidArgument(
            f"{path}, line 1, has an empty cell or the same text twice: it must name each column once, "
            "or hold numbers alone."
        )
    if numbers:
        raise InvalidArgument(
            f"{path}, line 1, has both numbers and text: it is neither a line of names nor a record. "
            "Let line 1 name each column (a name is not a number), and turn text in records into codes "
            "(0, 1, 2, ...)."
        )
    return True


def _is_number(cell: str, gap: bool = False) -> bool:
    try:
        _number(cell, gap)
    except ValueError:
        return False
    return True


def _what_is_wrong_in(
    path: Path, named: bool, text: tuple[int, ...], gaps: set[int], names: list[str] | None
) -> str:
    """The first cell that is no number, by line and column, or the first line of another length.

    Columns with numbers in `text` (from 0) may hold anything, and those in `gaps` nothing.
    """
    with open(path, newline="", encoding="utf-8-sig", errors="replace") as file:
        rows = csv.reader(file)
        width = len(next(rows) if named else [])
        for row in rows:
            width = width or len(row)
            where = f"{path}, line {rows.line_num}"
            if row and len(row) != width:
                return f"{where}, has {len(row)} cells, not {width}: give each record all columns."
            for column, cell in enumerate(row):
                if _is_number(cell, column in gaps) or column in text:
                    continue
                where += f", column {column + 1 if names is None else repr(names[column])},"
                if not cell.strip():
                    return (
                        f"{where} is empty: fill it with a constant, drop the record, or name the "
                        "column in `scales`, where a missing number counts as the centre."
                    )
                return (
                    f"{where} is not a number: turn text into codes (0, 1, 2, ...) and dates into "
                    "days, list categories in `categories`, or leave the column out. Only line 1 may "
                    "hold names."
                )
    return f"{path} cannot be read as numbers: check its separators and quotes."


def _read_parquet(
    path: Path, text: tuple[str, ...], gaps: tuple[str, ...], _: Collection[str]
) -> dict[str, np.ndarray]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise InvalidArgument(
            f"{path} needs pyarrow, which is not installed: pip install '.[parquet]' in a copy of "
            "the repository."
        ) from error
    try:
        table = pyarrow.parquet.read_table(path)
    except pyarrow.ArrowInvalid as error:
        raise InvalidArgument(f"{path} is not a parquet file, or is damaged.") from error
    return {
        name: _column(path, name, table[name], name in text, name in gaps)
        for name in table.column_names
    }


def _column(
    path: Path, name: str, column: Any, text: bool = False, gap: bool = False
) -> np.ndarray:
    import pyarrow.types as types

    kind = column.type
    if gap and (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        return np.asarray(column.cast("float64", safe=False))
    if column.null_count:
        raise InvalidArgument(
            f"{path}, column {name!r}, has missing values: fill them with a constant, drop those "
            "records, or name the column in `scales`, where a missing number counts as the centre."
        )
    if text:
        return np.asarray(column.to_pylist(), dtype=object)
    if types.is_fixed_size_list(kind):
        flat = _column(path, name, column.combine_chunks().flatten())
        return flat.reshape(-1, kind.list_size)
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        raise InvalidArgument(
            f"{path}, column {name!r}, is of type {kind}: a loss computes with numbers. Turn text "
            "into codes (0, 1, 2, ...) and dates into days, list categories in `categories`, or leave "
            "the column out."
        )
    return np.asarray(column)


_READERS: dict[str, Callable[[Path, tuple[str, ...], tuple[str, ...], Collection[str]], PyTree]] = {
    ".npy": _read_numpy,
    ".npz": _read_numpy,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}
