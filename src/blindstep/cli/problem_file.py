"""A problem as a Python file: `loss`, `params` and `data` (docs/train.md has an example).

Optional: `lipschitz` and `gap` (numbers) and `bounds` (such as `blindstep.Bounds(range=(0, 1))`), or
`method`, a method of your own; `scales` and `categories`, public constants by which columns become
`record["features"]` (`blindstep.encode`).
"""

from __future__ import annotations

import ast
import os
import runpy
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from blindstep.cli.data_files import check_finite, read_data, require_file
from blindstep.errors import InvalidArgument
from blindstep.estimate.bounds import Bounds
from blindstep.losses.data_frames import arrays_of, encode
from blindstep.losses.pytrees import Loss, ParameterSpace, check_loss, count_records
from blindstep.planning.method import Method
from blindstep.planning.planner import require_method

_NEEDED = {
    "loss": "a function loss(params, record) that gives one number for one record",
    "params": "where to start: an array, or a dict of arrays",
    "data": "arrays with one row for each record, or the path of a .npy, .npz, .csv or .parquet",
}


@dataclass(frozen=True)
class ProblemFile:
    """What a problem file defines, checked."""

    loss: Loss  # of parameters and one record
    params: PyTree  # where to start
    data: PyTree  # arrays, one row for each record
    people: np.ndarray | None  # whose row each is; None: each row is another person's
    known: dict[str, Any]  # those of `lipschitz`, `gap` and `bounds` that it defines
    source: Path | None  # the file that the data come from; None: the problem file made them
    method: Method | None = None  # how the run is planned, if the file says so


def load_problem(path: Path, people: str | None = None) -> ProblemFile:
    """Run the file and check what it defines; nothing is evaluated on a record yet.

    `people` names the column of the data that holds identifiers. It is taken out of them.
    """
    names = _run(path)
    missing = [name for name in _NEEDED if name not in names]
    if missing:
        listed = "; ".join(f"`{name}`, {_NEEDED[name]}" for name in missing)
        raise InvalidArgument(f"{path} does not define {listed}.")
    loss, params, data = (names[name] for name in _NEEDED)
    if not callable(loss):
        raise InvalidArgument(
            f"{path}: loss is a {type(loss).__name__}, not a function: define loss(params, record)."
        )
    constants, source = _constants(path, names), None
    if isinstance(data, str | os.PathLike):
        source = path.parent / data
        gaps = tuple(constants.get("scales", {}))
        data = read_data(source, _text_columns(constants, people), gaps, _spoken(path))
    identifiers = None
    if people is not None:
        data, identifiers = _without(data, people)
    data = _encoded(path, data, constants)
    count_records(data)
    ParameterSpace.of(params)
    with jax.enable_x64(True):
        _check_traceable(path, loss, params, data)
    check_finite(data)
    known = {name: names[name] for name in ("lipschitz", "gap", "bounds") if name in names}
    if not isinstance(known.get("bounds", Bounds()), Bounds):
        raise InvalidArgument(
            f"{path}: bounds is a {type(known['bounds']).__name__}: give blindstep.Bounds(clip=1.0)."
        )
    if (method := names.get("method")) is not None:
        require_method(method)
    return ProblemFile(loss, params, data, identifiers, known, source, method)


def _constants(path: Path, names: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Those of `scales` and `categories` that the file defines."""
    constants = {name: names[name] for name in ("scales", "categories") if name in names}
    for name, given in constants.items():
        if not isinstance(given, dict):
            raise InvalidArgument(
                f"{path}: {name} is a {type(given).__name__}: give a dict by column, such as "
                "scales = {'age': (40, 20)} or categories = {'job': ('cook', 'clerk')}."
            )
    return constants


def _text_columns(constants: dict[str, dict[str, Any]], people: str | None) -> tuple[str, ...]:
    """The columns of a file that may hold text: identifiers, and categories that are text."""
    lists = constants.get("categories", {}).items()
    text = [name for name, listed in lists if any(isinstance(each, str) for each in listed)]
    return (*text, *(() if people is None else (people,)))


def _spoken(path: Path) -> frozenset[str]:
    """The names that the file takes parts by: "age" in `record["age"]`."""
    parts = (
        each.slice
        for each in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(each, ast.Subscript)
    )
    names = (each.value for each in parts if isinstance(each, ast.Constant))
    return frozenset(each for each in names if isinstance(each, str))


def _encoded(path: Path, data: PyTree, constants: dict[str, dict[str, Any]]) -> PyTree:
    """The data as arrays; encoded, where the file has `scales` or `categories`."""
    if not constants:
        return arrays_of(data)
    if not hasattr(data, "columns") and not isinstance(data, dict):
        raise InvalidArgument(
            f"{path}: {' and '.join(constants)} are for columns with names: give a dict of arrays, a "
            "data frame, a .npz, a .parquet, or a .csv whose line 1 names each column."
        )
    try:
        return encode(data, **constants)
    except InvalidArgument as error:
        raise InvalidArgument(f"{path}: {error}") from error


def _without(data: PyTree, people: str) -> tuple[PyTree, np.ndarray]:
    """The data without the column of identifiers, and that column."""
    if hasattr(data, "columns"):
        data = {name: data[name] for name in data.columns}
    if not isinstance(data, dict) or people not in data:
        raise InvalidArgument(
            f"data has no column {people!r}, which --people names: give columns by name (a dict of "
            "arrays, a .npz, a .parquet, or a .csv whose line 1 names each column), one of them this."
        )
    rest = {name: column for name, column in data.items() if name != people}
    if not rest:
        raise InvalidArgument(f"data has no column but {people!r}: the loss would see nothing.")
    return rest, np.asarray(data[people])


def _run(path: Path) -> dict[str, Any]:
    """The names that the file defines. Files beside it can be imported, as under `python FILE`."""
    require_file(path, "give the Python file that defines the problem")
    sys.path.insert(0, str(path.resolve().parent))
    try:
        return runpy.run_path(str(path), run_name="blindstep_problem")
    except SyntaxError as error:
        said = f"{path}, line {error.lineno}, is not Python: {error.msg}."
        raise InvalidArgument(said) from error
    except Exception as error:
        # The message itself may quote a record.
        raise InvalidArgument(
            f"{path}{_line(path, error)} raised {type(error).__name__}: run `python {path}` to see it "
            "in full."
        ) from error
    finally:
        sys.path.remove(str(path.resolve().parent))


def _line(path: Path, error: Exception) -> str:
    """Where in the file the error came from: ", line 7," or nothing."""
    steps = traceback.extract_tb(error.__traceback__)
    lines = [step.lineno for step in steps if step.filename == str(path)]
    return f", line {lines[-1]}," if lines else ""


def _check_traceable(path: Path, loss: Loss, params: PyTree, data: PyTree) -> None:
    """Trace the loss on shapes, and say what is wrong without a value that the loss may hold."""
    try:
        check_loss(loss, params, data)
    except Exception as refused:
        error = refused
        if isinstance(refused, InvalidArgument):
            error = refused.__cause__  # what the loss raised
            if not isinstance(error, Exception) or isinstance(error, jax.errors.JAXTypeError):
                raise InvalidArgument(f"{path}: {refused}") from refused
        shapes = jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape[1:])}", data)
        said = str(error).partition("\n")[0]
        # A loss may have read the data itself, and then Python's message quotes it. JAX's words about
        # shapes quote nothing.
        words = f" ({said})" if "shape" in said and "'" not in said else ""
        raise InvalidArgument(
            f"{path}{_line(path, error)} raised {type(error).__name__}{words} when the loss was given "
            f"one record, which is {shapes}: call the loss on a made-up record to see it in full."
        ) from error
