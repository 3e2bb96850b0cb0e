"""Records of a PyTorch user as tensors of one shape: what a batch of them is made of.

`collate` is called for one record at a time. So what it makes of a record depends on that record alone,
and all must come out in one shape: shapes are public, and a batch padded to its longest text would tell
of that text in the last bits of all others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int, PyTree

from blindstep.errors import InvalidArgument
from blindstep.losses.people import People
from blindstep.losses.rehearsal import made_up
from blindstep.losses.silence import interrupt, silence
from blindstep.private.accounting import RECORD

# Kinds of made-up records.
KINDS = (0, 1, 2, 3, 4)
_LARGE = 1e3
Collate = Callable[[list[Any]], Any]


class Batch(NamedTuple):
    """Some records on the device of the model."""

    rows: PyTree  # what the loss gets: tensors whose leading axis is the row
    used: torch.Tensor | None  # how many rows of each person count; None: a row is a record


class Records:
    """The records of a run.

    Attributes:
        number: how many there are.
        unit: what one of them is, in the words of the privacy statement.
        void: which of them count 0, because `collate` failed for them.
    """

    def __init__(
        self, data: Any, collate: Collate | None = None, people: People | None = None
    ) -> None:
        """Take over tensors or arrays, or make tensors of a data set, record by record."""
        self._table, void = _table(data, collate)
        number = _count(self._table)
        self._index: Int[np.ndarray, "people rows"] | None = None
        self.void = np.zeros(number, bool) if void is None else void
        if people is None:
            self.number, self.unit = number, RECORD
            return
        self._index, self._used = people.grouped(number)
        self.number, self.unit = len(self._index), people.unit
        counts = np.arange(people.rows) < self._used[:, None]
        self.void = np.any(self.void[self._index] & counts, axis=1)

    @property
    def arrays(self) -> PyTree:
        """All of it as NumPy arrays, for its fingerprint."""
        groups = () if self._index is None else (self._index, self._used)
        return mapped(_array, self._table), groups

    def batch(self, places: Int[np.ndarray, " few"], device: torch.device) -> Batch:
        """The records at these places."""
        if self._index is None:
            return Batch(mapped(lambda leaf: _taken(leaf, places, device), self._table), None)
        rows, used = self._index[places].ravel(), torch.from_numpy(self._used[places]).to(device)
        return Batch(mapped(lambda leaf: _taken(leaf, rows, device), self._table), used)

    def made_up(self, number: int, device: torch.device, kinds: Sequence[int]) -> Batch:
        """A batch of made-up records, with the shapes and types of the records and nothing else.

        Its rows are of these kinds in turn: 0 is zeros, 1 ones, 2 to 4 are random numbers, 4 large.
        """
        slots = 1 if self._index is None else self._index.shape[1]
        which = np.resize(np.asarray(kinds), number * slots)
        made = made_up([_empty(leaf) for leaf in leaves(self._table)], len(KINDS))
        for column in made:
            if column.dtype.kind == "f":
                column[4] *= _LARGE
        columns = iter(made)
        rows = mapped(
            lambda leaf: torch.as_tensor(next(columns)[which]).to(device, _type(leaf)), self._table
        )
        used = None if self._index is None else torch.full((number,), slots, device=device)
        return Batch(rows, used)


def of_people(values: torch.Tensor, used: torch.Tensor | None) -> torch.Tensor:
    """The values of records from those of rows, at each shift: the mean over the rows that count.

    Rows that do not count are evaluated, too, so that nobody's number of rows can be seen.
    """
    if used is None:
        return values
    by_person = values.view(len(values), len(used), -1)
    counts = torch.arange(by_person.shape[-1], device=used.device) < used[:, None]
    return torch.where(counts, by_person, 0.0).sum(-1) / used


def mapped(function: Callable[[Any], Any], tree: PyTree) -> PyTree:
    """A tree of mappings, lists and tuples with the function applied to its leaves."""
    if isinstance(tree, Mapping):
        return {name: mapped(function, each) for name, each in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(mapped(function, each) for each in tree))
    if isinstance(tree, list | tuple):
        return type(tree)(mapped(function, each) for each in tree)
    return function(tree)


def leaves(tree: PyTree) -> list[Any]:
    """The leaves of such a tree, in order; None is none."""
    found: list[Any] = []
    mapped(found.append, tree)
    return [leaf for leaf in found if leaf is not None]


def _table(data: Any, collate: Collate | None) -> tuple[PyTree, np.ndarray | None]:
    """All records as tensors or arrays, and which of them are void."""
    columns = isinstance(data, Mapping) or all(
        isinstance(each, torch.Tensor | np.ndarray)
        for each in (data if isinstance(data, tuple) else [data])
    )
    if isinstance(data, list) and data and all(isinstance(each, torch.Tensor) for each in data):
        raise InvalidArgument(
            "data is a list of tensors, which may be columns or records: give a tuple of columns, or "
            "torch.stack the records."
        )
    if columns:
        if collate is not None:
            raise InvalidArgument(
                "collate makes tensors of the records of a data set, but data are tensors already: "
                "leave it out."
            )
        return mapped(_checked, data), None
    if not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
        raise InvalidArgument(
            f"data is a {type(data).__name__}: give a mapping of tensors or arrays, or a data set with "
            "a length, whose records have numbers."
        )
    return _collated(data, collate or torch.utils.data.default_collate)


def _collated(data: Any, collate: Collate) -> tuple[PyTree, np.ndarray]:
    """Each record by itself, in silence: what fails for one, or says something of it, is its secret."""
    made: list[Any] = []
    with silence(worker=False), interrupt.watched(here=True):
        for number in range(len(data)):
            try:
                made.append(mapped(lambda leaf: leaf, collate([data[number]])))
            except BaseException:
                made.append(None)
            interrupt.passed_on()
    if not made:
        raise InvalidArgument("the data set is empty: give at least one record.")
    like = next((each for each in made if each is not None), None)
    if like is None:
        raise InvalidArgument("collate fails for every record: try it on one that you make up.")
    mapped(_checked, like)
    found = _paths(like)
    if any(leaf.ndim == 0 or len(leaf) != 1 for leaf in map(torch.as_tensor, found.values())):
        raise InvalidArgument(
            "collate is called with a list of one record, and must make tensors with a leading axis of "
            "length 1."
        )
    columns: dict[str, list[torch.Tensor]] = {path: [] for path in found}
    for each in made:
        own = found if each is None else _paths(each)
        if _forms(own) != _forms(found):
            raise InvalidArgument(
                "collate made records of different shapes, types or names. Pad all of them to one "
                "length that you choose without looking at the records, such as "
                "padding='max_length', max_length=64, truncation=True: a shape is public."
            )
        for path, leaf in own.items():
            # A void record gets zeros in its place.
            tensor = torch.as_tensor(leaf)
            columns[path].append(torch.zeros_like(tensor) if each is None else tensor)
    joined = iter([torch.cat(column) for column in columns.values()])
    return mapped(lambda _: next(joined), like), np.array([each is None for each in made])


def _paths(tree: PyTree, path: str = "") -> dict[str, Any]:
    """The leaves of a tree by name, whatever the order of its mappings."""
    if isinstance(tree, Mapping):
        parts = [_paths(each, f"{path}/{name}") for name, each in tree.items()]
    elif isinstance(tree, list | tuple):
        parts = [_paths(each, f"{path}/{place}") for place, each in enumerate(tree)]
    else:
        return {path: tree}
    return {name: leaf for part in parts for name, leaf in part.items()}


def _forms(found: dict[str, Any]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    tensors = {path: torch.as_tensor(leaf) for path, leaf in found.items()}
    return {path: (tensor.shape, tensor.dtype) for path, tensor in tensors.items()}


def _checked(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf
    if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biuf":
        return leaf
    kind = f"an array of {leaf.dtype}" if isinstance(leaf, np.ndarray) else type(leaf).__name__
    raise InvalidArgument(
        f"data holds {kind}, and a model computes with numbers: give tensors or arrays, or a `collate` "
        "that makes tensors (it tokenizes text, for example) and leaves the rest out."
    )


def _count(table: PyTree) -> int:
    lengths = {len(leaf) if leaf.ndim else -1 for leaf in leaves(table)}
    if len(lengths) != 1 or -1 in lengths:
        shapes = ", ".join(str(tuple(leaf.shape)) for leaf in leaves(table))
        raise InvalidArgument(
            f"leading axes disagree ({shapes or 'no tensor'}): row i of every tensor belongs to "
            "record i."
        )
    if lengths == {0}:
        raise InvalidArgument("the data set is empty: give at least one record.")
    return lengths.pop()


def _taken(leaf: Any, rows: Int[np.ndarray, " some"], device: torch.device) -> torch.Tensor:
    if isinstance(leaf, torch.Tensor):
        return leaf[torch.from_numpy(rows).to(leaf.device)].to(device)
    return torch.from_numpy(np.ascontiguousarray(leaf[rows])).to(device)


def _array(leaf: Any) -> np.ndarray:
    if isinstance(leaf, np.ndarray):
        return leaf
    leaf = leaf.detach().cpu().contiguous()
    return leaf.numpy() if leaf.dtype != torch.bfloat16 else leaf.view(torch.int16).numpy()


def _type(leaf: Any) -> torch.dtype:
    return leaf.dtype if isinstance(leaf, torch.Tensor) else torch.from_numpy(leaf[:0]).dtype


def _empty(leaf: Any) -> np.ndarray:
    kind = _type(leaf)
    dtype = np.float32 if kind == torch.bfloat16 else torch.empty(0, dtype=kind).numpy().dtype
    return np.empty((0, *leaf.shape[1:]), dtype)
