"""A problem as a Python file: `loss`, `params` and `data`, and what is known about the loss.

    import jax.numpy as jnp

    def loss(params, record):
        return jnp.abs(record["weight"] - params["slope"] * record["height"])

    params = {"slope": jnp.zeros(())}
    data = "people.csv"          # or .npy, .npz, .parquet, or arrays

Optional: `lipschitz` and `gap` (numbers) and `bounds` (such as `blindstep.Range(0, 1)`).
"""

from __future__ import annotations

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

from blindstep.drivers.compiled import Loss
from blindstep.drivers.data_files import check_data, read_data
from blindstep.drivers.pytrees import ParameterSpace, check_loss, count_records
from blindstep.errors import InvalidArgument
from blindstep.trusted.bounds import Bounds

_NEEDED = {
    "loss": "a function loss(params, record) that gives one number for one record",
    "params": "where to start: an array, or a dict of arrays",
    "data": "arrays with one row for each record, or the path of a .npy, .npz, .csv or .parquet",
}


@dataclass(frozen=True)
class ProblemFile:
    """What a problem file defines, checked.

    Attributes:
        loss: of parameters and one record.
        params: where to start.
        data: arrays, one row for each record.
        known: those of `lipschitz`, `gap` and `bounds` that it defines.
    """

    loss: Loss
    params: PyTree
    data: PyTree
    known: dict[str, Any]


def load_problem(path: Path) -> ProblemFile:
    """Run the file and check what it defines; nothing is evaluated on a record yet."""
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
    if isinstance(data, str | os.PathLike):
        data = read_data(path.parent / data)
    check_data(data)
    count_records(data)
    ParameterSpace.of(params)
    with jax.enable_x64(True):
        _check_traceable(path, loss, params, data)
    known = {name: names[name] for name in ("lipschitz", "gap", "bounds") if name in names}
    if not isinstance(known.get("bounds", Bounds()), Bounds):
        raise InvalidArgument(
            f"{path}: bounds is a {type(known['bounds']).__name__}: give blindstep.Range(0, 1), "
            "blindstep.Clip(1.0) or blindstep.Lipschitz(1.0)."
        )
    return ProblemFile(loss, params, data, known)


def _run(path: Path) -> dict[str, Any]:
    """The names that the file defines. Files beside it can be imported, as under `python FILE`."""
    if not path.is_file():
        raise InvalidArgument(
            f"{path} is not there: give the Python file that defines the problem."
        )
    sys.path.insert(0, str(path.resolve().parent))
    try:
        return runpy.run_path(str(path), run_name="blindstep_problem")
    except SyntaxError as error:
        raise InvalidArgument(
            f"{path}, line {error.lineno}, is not Python: {error.msg}."
        ) from error
    except Exception as error:
        # The message itself may quote a record.
        steps = traceback.extract_tb(error.__traceback__)
        lines = [step.lineno for step in steps if step.filename == str(path)]
        where = f", line {lines[-1]}," if lines else ""
        raise InvalidArgument(
            f"{path}{where} raised {type(error).__name__}: run `python {path}` to see it in full."
        ) from error
    finally:
        sys.path.remove(str(path.resolve().parent))


def _check_traceable(path: Path, loss: Loss, params: PyTree, data: PyTree) -> None:
    """Trace the loss on shapes; no value is looked at, so JAX's own message may be shown."""
    shapes = jax.tree.map(lambda leaf: f"{leaf.dtype}{list(np.shape(leaf)[1:])}", data)
    try:
        check_loss(loss, params, data)
    except InvalidArgument as error:
        raise InvalidArgument(f"{path}: {error}") from error
    except (
        jax.errors.ConcretizationTypeError,
        jax.errors.TracerArrayConversionError,
        jax.errors.TracerIntegerConversionError,
    ) as error:
        raise InvalidArgument(
            f"{path}: JAX cannot trace the loss. Write it with jax.numpy, with jnp.where in place "
            "of `if`, and without float(), int() or numpy; a loss that must run as plain Python goes "
            "through blindstep.host.minimize."
        ) from error
    except Exception as error:
        said = str(error).splitlines()[0] if str(error) else ""
        raise InvalidArgument(
            f"{path}: the loss fails on one record, which has {shapes}: {type(error).__name__}: {said}"
        ) from error
