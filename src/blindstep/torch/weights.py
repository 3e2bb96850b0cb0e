"""The parameters of a model that a run tunes: probed in scratch buffers, moved between steps.

A probe never writes to the model. While it lasts every tuned parameter is replaced by a stand-in
(`Probed`), which has its shape and no numbers. Every operation of PyTorch gets w + amount x signs
instead, made for that operation in a buffer. So any layer is supported, and parameters that are used in
several places move together.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch.utils._pytree import tree_map_only

from blindstep.errors import InvalidArgument
from blindstep.torch.sign_ops import Shifts, add_signs, round_at_random, sum_signs

# Of each direction in each tuned parameter.
Seeds = Int[np.ndarray, "q tensors"]
_LEAST_LENGTH = 0.1
# Units in the last place that a probe moves a parameter by, at least.
_SEEN = 2.0
_SMALL = (torch.bfloat16, torch.float16)
# Numbers that are moved, or squared, at a time: a multiple of 64.
_PART = 2**22
_TYPES = (*_SMALL, torch.float32, torch.float64)


class StandIn(torch.Tensor):
    """Stands in for a tensor of the model, and has no numbers: operations get what `filled` gives.

    This one gives the tensor itself, and forgets what is written to it. Else a layer that keeps
    statistics of what it sees (an observer, `max_norm` of an embedding) would carry one record to the
    others, and out of the run without noise.
    """

    source: torch.Tensor

    @staticmethod
    def __new__(cls, source: torch.Tensor, *_: Any) -> Any:
        """A tensor of the shape of `source`; a parameter, if that is one."""
        like = {"dtype": source.dtype, "device": source.device}
        made = torch.Tensor._make_wrapper_subclass(cls, source.shape, **like)
        made._is_param = isinstance(source, torch.nn.Parameter)  # what isinstance looks at
        return made

    def __init__(self, source: torch.Tensor) -> None:
        """For `source` as it is."""
        self.source = source.detach()

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        writes = func._schema.is_mutable

        def filled(arg: Any) -> Any:
            return arg.filled(writes) if isinstance(arg, StandIn) else arg

        # Nearly always tensors stand alone among the arguments: looking into all takes longer.
        args = tuple([filled(arg) for arg in args])
        if kwargs or any(type(arg) in (list, tuple) for arg in args):
            args, kwargs = tree_map_only(StandIn, filled, (args, kwargs))
        return func(*args, **(kwargs or {}))

    def filled(self, writes: bool) -> torch.Tensor:
        """The numbers for one operation; for one that writes, a copy."""
        return self.source.clone() if writes else self.source


class Probed(StandIn):
    """Stands in for a tuned parameter: operations get it plus amount x signs, in an own buffer."""

    def __init__(self, source: torch.Tensor, shifts: Shifts, number: int) -> None:
        """For `source` moved by pair `number` of the shifts."""
        super().__init__(source.contiguous())
        self._shifts, self._number = shifts, number

    def filled(self, writes: bool) -> torch.Tensor:
        """The moved parameter."""
        return add_signs(self.source, self._shifts, self._number, torch.empty_like(self.source))


@dataclass(frozen=True)
class Place:
    """Where a module holds a tensor."""

    held: dict[str, Any]  # the module's parameters, or its buffers
    name: str
    tensor: int | None  # the number of a tuned parameter; None for others


class Move(NamedTuple):
    """How all tuned parameters move: by unit x sum_j weights_j s_j, with signs s_j."""

    seeds: Seeds
    # Whole numbers, whose sizes add up to at most 2^24 in each tensor.
    weights: Float[np.ndarray, "q tensors"]
    unit: Float[np.ndarray, " tensors"]  # powers of two
    rounding: Int[np.ndarray, " tensors"]  # seeds by which types of 16 bits are rounded


class Weights:
    """The tuned parameters of a model: those that require a gradient.

    Attributes:
        model: the model.
        names: of each tuned parameter.
        tensors: the parameters themselves; those that are used in several places once.
        sizes: how many numbers each has.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        tuned = ((name, each) for name, each in model.named_parameters() if each.requires_grad)
        found = [(name, each) for name, each in tuned if each.numel()]
        if not found:
            raise InvalidArgument(
                "no parameter of the model requires a gradient, and these are what is tuned: call "
                "requires_grad_(True) on those that are meant."
            )
        for name, each in found:
            if each.dtype not in _TYPES:
                raise InvalidArgument(
                    f"{name} has dtype {each.dtype}: tuned parameters are bfloat16, float16, float32 "
                    "or float64. Convert it, or keep it fixed with requires_grad_(False)."
                )
            if not bool(torch.isfinite(each).all()):
                raise InvalidArgument(f"{name} is not finite: start from finite parameters.")
        self.names = [_plain(name) for name, _ in found]
        self.tensors = [each for _, each in found]
        self.sizes = tuple(each.numel() for each in self.tensors)
        number = {id(each): place for place, each in enumerate(self.tensors)}
        self._places = [
            Place(held, name, number.get(id(each)))
            for module in model.modules()
            for held in (module._parameters, module._buffers)
            for name, each in held.items()
            if each is not None
        ]
        self._refuse_shared_storage()

    def _refuse_shared_storage(self) -> None:
        """Raise if a tuned parameter shares its memory with another tensor of the model, or itself."""
        tuned, seen = {id(each) for each in self.tensors}, dict[int, int]()
        for place in self._places:
            each = place.held[place.name]
            where = each.untyped_storage().data_ptr()
            first = seen.setdefault(where, id(each)) if where else id(each)  # none: it is empty
            if first != id(each) and (first in tuned or id(each) in tuned):
                raise InvalidArgument(
                    f"{place.name} shares its memory with another tensor of the model, and one of "
                    "them is tuned: tie them by using one Parameter in both places."
                )
        for name, each in zip(self.names, self.tensors, strict=True):
            strides = zip(each.shape, each.stride(), strict=True)
            if each.is_inference() or any(n > 1 and s == 0 for n, s in strides):
                raise InvalidArgument(
                    f"{name} cannot be moved: it was expanded, or made in inference mode. Clone it."
                )

    @property
    def dim(self) -> int:
        """d, the number of tuned parameters."""
        return sum(self.sizes)

    def lengths(self) -> Float[np.ndarray, " tensors"]:
        """Units to begin with: the root mean square of each parameter, over that of all.

        A parameter that starts at 0, or has hardly a tenth of the size of all, gets a tenth.
        """
        sizes, every = np.array(self.sizes), self.size / math.sqrt(self.dim)
        if every == 0.0:
            return np.ones(len(sizes))
        lengths = np.maximum(self._root_mean_squares() / every, _LEAST_LENGTH)
        return lengths / math.sqrt(float(np.sum(sizes * lengths**2)) / self.dim)

    def sizes_of_numbers(self) -> Float[np.ndarray, " tensors"]:
        """The usual size of a number in each parameter; of one that is all 0, that in all of them."""
        sizes = self._root_mean_squares()
        return np.where(sizes > 0, sizes, self.size / math.sqrt(self.dim) or 1.0)

    def _root_mean_squares(self) -> Float[np.ndarray, " tensors"]:
        return np.array([math.sqrt(_square(each) / each.numel()) for each in self.tensors])

    def nearest(self, lengths: Float[np.ndarray, " tensors"]) -> float:
        """How far out probes must lie, in these units, for rounding not to hide them.

        A probe moves a parameter of tensor l by distance x length_l / sqrt(d). That is to be some units
        in the last place of numbers of the usual size there.
        """
        eps = np.array([torch.finfo(each.dtype).eps for each in self.tensors])
        farthest = float(np.median(eps * self._root_mean_squares() / lengths))
        return _SEEN * farthest * math.sqrt(self.dim)

    @property
    def size(self) -> float:
        """The norm of all of them together."""
        return math.sqrt(sum(_square(each) for each in self.tensors))

    @property
    def length(self) -> float:
        """The same; if all are 0, that of numbers of size 1."""
        return self.size or math.sqrt(self.dim)

    def probed(self, shifts: Shifts) -> contextlib.AbstractContextManager[None]:
        """The model with each tuned parameter moved by the pair of its number, for a while."""
        own = enumerate(self.tensors)
        return self.replaced([Probed(each, shifts, number) for number, each in own], StandIn)

    def untouched(self) -> contextlib.AbstractContextManager[None]:
        """The model as it is, for a while; what is written to it then is forgotten."""
        return self.replaced([StandIn(each) for each in self.tensors], StandIn)

    @contextlib.contextmanager
    def replaced(
        self, tensors: Sequence[torch.Tensor], kept: Callable[[torch.Tensor], torch.Tensor]
    ) -> Iterator[None]:
        """The model with other tensors in the place of its tuned parameters, for a while.

        All others of its tensors are replaced by what `kept` makes of them.
        """
        own = [place.held[place.name] for place in self._places]
        pairs = zip(self._places, own, strict=True)
        others = {id(each): each for place, each in pairs if place.tensor is None}
        made = {key: kept(each) for key, each in others.items()}
        try:
            for place, each in zip(self._places, own, strict=True):
                new = made[id(each)] if place.tensor is None else tensors[place.tensor]
                place.held[place.name] = new
            yield
        finally:
            for place, each in zip(self._places, own, strict=True):
                place.held[place.name] = each

    def stacked(
        self, seeds: Int[np.ndarray, "shifts tensors"], amounts: Float[np.ndarray, "shifts tensors"]
    ) -> list[torch.Tensor]:
        """The parameters at several shifts, each with these as its leading axis."""
        shifts, number = _shifts(seeds, amounts), len(self.tensors)
        found = []
        for tensor, each in enumerate(self.tensors):
            source = each.detach().contiguous()
            stack = source.new_empty((len(seeds), *source.shape))
            for shift, out in enumerate(stack):
                add_signs(source, shifts, shift * number + tensor, out)
            found.append(stack)
        return found

    def copies(self) -> list[torch.Tensor]:
        """Copies of all tuned parameters, in the memory of the host."""
        return [each.detach().to("cpu", copy=True) for each in self.tensors]

    def put_back(
        self, copies: Sequence[torch.Tensor], moved: Float[np.ndarray, " dim"] | None = None
    ) -> None:
        """The parameters as they were when they were copied; or moved from there, rounded once."""
        parts = None if moved is None else torch.from_numpy(moved).split(self.sizes)
        with torch.no_grad():
            for number, (each, copy) in enumerate(zip(self.tensors, copies, strict=True)):
                if parts is not None:
                    copy = copy.double() + parts[number].view(copy.shape)
                each.copy_(copy)

    def as_bytes(self) -> tuple[bytes, ...]:
        """The bytes of each tuned parameter."""
        return tuple(
            each.contiguous().view(torch.uint8).numpy().tobytes() for each in self.copies()
        )

    def from_bytes(self, content: Sequence[bytes]) -> None:
        """The parameters of these bytes; raises `ValueError` if they are not as many."""
        made = []
        for each, own in zip(self.tensors, content, strict=True):
            found = torch.frombuffer(bytearray(own), dtype=each.dtype)
            made.append(found.view(each.shape))
        self.put_back(made)

    def norm(self, seeds: Seeds, weights: Float[np.ndarray, " q"]) -> float:
        """|sum_j weights_j s_j| over all parameters; the weights are whole numbers as in `Move`."""
        shifts = _shifts(seeds, np.broadcast_to(weights[:, None], seeds.shape))
        norms = [
            torch.linalg.vector_norm(self._sum(number, shifts, first, part), dtype=torch.float64)
            for number, each in enumerate(self.tensors)
            for first, part in _parts(each)
        ]
        # Waiting for each number on its own would take longer than computing it.
        devices = {each.device for each in norms}
        of_devices = (torch.stack([n for n in norms if n.device == each]).cpu() for each in devices)
        return math.sqrt(math.fsum(float(n) ** 2 for some in of_devices for n in some))

    def inner(
        self,
        one: tuple[Int[np.ndarray, "p tensors"], Float[np.ndarray, " p"]],
        two: tuple[Int[np.ndarray, "q tensors"], Float[np.ndarray, " q"]],
    ) -> float:
        """The inner product of two such sums over all parameters."""
        both = [_shifts(seeds, np.broadcast_to(w[:, None], seeds.shape)) for seeds, w in (one, two)]
        found = []
        for number, each in enumerate(self.tensors):
            for start, part in _parts(each):
                a, b = (self._sum(number, shifts, start, part).double() for shifts in both)
                found.append(torch.sum(a * b))
        return math.fsum(map(float, found))

    def move(self, move: Move) -> None:
        """Add unit x sum_j weights_j s_j to each parameter.

        The sum and its product are exact in float32, in any order, and each parameter is rounded once:
        the result is the same, bit for bit, on every device. Types of 16 bits are rounded at random,
        so that many small moves are not lost.
        """
        shifts = _shifts(move.seeds, move.weights)
        with torch.no_grad():
            for number, each in enumerate(self.tensors):
                for first, part in _parts(each):
                    step = self._sum(number, shifts, first, part).mul_(float(move.unit[number]))
                    if each.dtype in _SMALL:
                        step += part
                        seed = int(move.rounding[number])
                        part.copy_(round_at_random(step, each.dtype, seed, first))
                    else:
                        part.add_(step.to(each.dtype))

    def _sum(self, number: int, shifts: Shifts, first: int, part: torch.Tensor) -> torch.Tensor:
        """sum_j weights_j s_j in a part of one parameter, from its element `first` on, in float32."""
        total = torch.empty(part.shape, dtype=torch.float32, device=part.device)
        return sum_signs(total, shifts, number, len(self.tensors), first)

    def fingerprint(self) -> str:
        """SHA-256 of the names, shapes, types and numbers of all parameters and buffers."""
        digest = hashlib.sha256()
        for name, each in sorted(self.model.state_dict(keep_vars=True).items()):
            if not isinstance(each, torch.Tensor):
                continue
            about = f"{_plain(name)} {tuple(each.shape)} {each.dtype} {each.requires_grad}\n"
            digest.update(about.encode())
            plain = each.detach().to("cpu").contiguous().reshape(-1)
            digest.update(plain.view(torch.uint8).numpy().data)
        return digest.hexdigest()


def _parts(each: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """A parameter in parts, each with its first place; one that does not lie in a row is one part."""
    if not each.is_contiguous():
        yield 0, each
        return
    for first, part in enumerate(each.view(-1).split(_PART)):
        yield first * _PART, part


def _square(each: torch.Tensor) -> float:
    # In a wider type the whole would take up to four times the memory that it has.
    parts = (part for _, part in _parts(each.detach()))
    norms = [torch.linalg.vector_norm(part, dtype=torch.float64) for part in parts]
    return float(torch.stack(norms).square().sum())


def _shifts(seeds: Seeds, weights: Float[np.ndarray, "q tensors"]) -> Shifts:
    made = Shifts(seeds.size)
    made.fill(seeds, weights)
    return made


def _plain(name: str) -> str:
    """The name of a parameter without what wrappers put before it."""
    for wrapper in ("_orig_mod.", "module."):  # torch.compile, DistributedDataParallel
        name = name.removeprefix(wrapper)
    return name
