"""Signs of `estimate.directions` in PyTorch: the same integers on every device, made where used."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from blindstep.estimate.directions import BITS, FIRST, GOLDEN, SECOND

# Signs that are made at a time: what they need on the way fits into a processor's cache.
_AT_ONCE = 2**18


class Shifts:
    """Seeds and amounts, each pair with a number: what signs to add, and how much of them.

    On an accelerator they stay at one address: a recorded program reads what was filled in last.
    """

    def __init__(self, number: int) -> None:
        """`number` pairs, all with amount 0."""
        self._seeds, self._amounts = np.zeros(number, np.int64), np.zeros(number, np.float32)
        self._placed: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = {}

    def fill(self, seeds: Int[np.ndarray, "..."], amounts: Float[np.ndarray, "..."]) -> None:
        """Replace all pairs. Seeds are 64 bits, as signed numbers; amounts are rounded to float32."""
        self._seeds, self._amounts = seeds.ravel(), amounts.ravel().astype(np.float32)
        for to_seeds, to_amounts in self._placed.values():
            to_seeds.copy_(torch.from_numpy(self._seeds))
            to_amounts.copy_(torch.from_numpy(self._amounts))

    def __len__(self) -> int:
        return len(self._seeds)

    def __getitem__(self, number: int) -> tuple[int, float]:
        return int(self._seeds[number]), float(self._amounts[number])

    def on(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Seeds and amounts in the memory of a device."""
        if device not in self._placed:
            seeds, amounts = torch.from_numpy(self._seeds), torch.from_numpy(self._amounts)
            self._placed[device] = seeds.to(device, copy=True), amounts.to(device, copy=True)
        return self._placed[device]


def add_signs(source: torch.Tensor, shifts: Shifts, number: int, out: torch.Tensor) -> torch.Tensor:
    """out = source + amount x signs, element by element; gives `out`, which may be `source`.

    Seed and amount are pair `number` of the shifts. Computed in float32 (float64 for float64) by one
    addition, and rounded to the type of `out`. So the result is the same, bit for bit, on every device.
    `source` and `out` are contiguous.
    """
    if source.is_cuda and (kernels := _kernels()) is not None:
        return kernels.add_signs(source, *shifts.on(source.device), number, out)
    _add_signs(source.view(-1), *shifts[number], out.view(-1), 0)
    return out


def _add_signs(
    flat: torch.Tensor, seed: int, amount: float, into: torch.Tensor, first: int
) -> None:
    """into = flat + amount x signs, those from word `first` of the seed on."""
    wide = torch.float64 if into.dtype == torch.float64 else torch.float32
    for start in range(0, flat.numel(), _AT_ONCE):
        part = flat[start : start + _AT_ONCE]
        place = first + start // BITS
        found = words(seed, place, -(-part.numel() // BITS), flat.device)
        # From bits 0 and 1 to -amount and amount, both exact.
        signs = _bits(found)[: part.numel()].to(wide).mul_(2.0 * amount).sub_(amount)
        into[start : start + _AT_ONCE] = signs.add_(part)


def sum_signs(
    out: torch.Tensor, shifts: Shifts, number: int, apart: int, first: int = 0
) -> torch.Tensor:
    """out = the sum of amount x signs over pairs number, number + apart, ..; in float32.

    `out` is the part of a tensor that begins at element `first`, a multiple of 64.
    """
    every = range(number, len(shifts), apart)
    if out.is_cuda and (kernels := _kernels()) is not None:
        pairs = shifts.on(out.device)
        return kernels.sum_signs(out, first // BITS, *pairs, number, apart, len(every))
    out.zero_()
    for each in every:
        _add_signs(out.view(-1), *shifts[each], out.view(-1), first // BITS)
    return out


def words(seed: int, first: int, number: int, device: torch.device) -> torch.Tensor:
    """Words first .. first + number - 1 of a seed, as signed 64-bit numbers."""
    places = torch.arange(first + 1, first + number + 1, dtype=torch.int64, device=device)
    return _mix(_mix(places) ^ seed)


def _signed(number: int) -> int:
    """64 bits as the signed number that PyTorch computes with."""
    return number - 2**64 if number >= 2**63 else number


def _mix(number: torch.Tensor) -> torch.Tensor:
    number = number * _signed(GOLDEN)
    number = (number ^ _right(number, 30)) * _signed(FIRST)
    number = (number ^ _right(number, 27)) * _signed(SECOND)
    return number ^ _right(number, 31)


def _right(number: torch.Tensor, places: int) -> torch.Tensor:
    """A shift that fills with zeros; that of signed numbers fills with the sign."""
    return (number >> places) & ((1 << (64 - places)) - 1)


def _bits(found: torch.Tensor) -> torch.Tensor:
    """The bits of each word, lowest first."""
    if found.is_cpu:
        return torch.from_numpy(np.unpackbits(found.numpy().view(np.uint8), bitorder="little"))
    places = torch.arange(BITS, device=found.device)
    return ((found[:, None] >> places) & 1).view(-1)


@functools.lru_cache(maxsize=1)
def _kernels() -> Any:
    """One pass over memory instead of several, where Triton is there to compile it."""
    try:
        from blindstep.torch import kernels
    except ImportError:
        return None
    return kernels


def round_at_random(
    value: torch.Tensor, dtype: torch.dtype, seed: int, first: int = 0
) -> torch.Tensor:
    """float32 rounded to 16 bits, up or down at random with the right mean; public, from a seed.

    Adds random bits below the last place that is kept, and cuts: the same on every device. `value` is
    the part of a tensor that begins at element `first`, a multiple of 4.
    """
    spare = 16 if dtype == torch.bfloat16 else 13  # places of float32 that the type does not have
    if value.is_cuda and (kernels := _kernels()) is not None:
        out = torch.empty(value.shape, dtype=dtype, device=value.device)
        return kernels.round_at_random(value.contiguous(), out, first // 4, seed, spare)
    bits = value.contiguous().view(torch.int32).view(-1)
    found = words(seed, first // 4, -(-bits.numel() // 4), value.device).view(torch.int16)
    chance = found[: bits.numel()].to(torch.int32) & ((1 << spare) - 1)
    cut = (bits + chance) & ~((1 << spare) - 1)
    return cut.view(torch.float32).view(value.shape).to(dtype)
