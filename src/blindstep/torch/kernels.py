"""Signs on an accelerator in one pass over memory (Triton)."""

# Triton comes with PyTorch for accelerators, and not with that for processors.
# pyright: reportMissingImports=false, reportIndexIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl

# Words in a block of work: each is 64 signs.
_WORDS = 32
_NUMBERS = 1024


@triton.jit
def _mix(number):
    number = number * 0x9E3779B97F4A7C15
    number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9
    number = (number ^ (number >> 27)) * 0x94D049BB133111EB
    return number ^ (number >> 31)


@triton.jit(do_not_specialize=["size", "number"])
def _add_signs(source, out, size, seeds, amounts, number, WORDS: tl.constexpr, WIDE: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * WORDS + tl.arange(0, WORDS)
    seed = tl.load(seeds + number).to(tl.uint64, bitcast=True)
    word = _mix(_mix((place + 1).to(tl.uint64)) ^ seed)
    bit = tl.arange(0, 64)
    sign = (word[:, None] >> bit[None, :].to(tl.uint64)) & 1
    index = place[:, None] * 64 + bit[None, :]
    inside = index < size
    value = tl.load(source + index, mask=inside).to(WIDE)
    amount = tl.load(amounts + number).to(WIDE)
    value += tl.where(sign == 1, amount, -amount)
    tl.store(out + index, value.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["size", "first", "number", "apart", "many"])
def _sum_signs(out, size, first, seeds, amounts, number, apart, many, WORDS: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * WORDS + tl.arange(0, WORDS)
    counter = _mix((first + place + 1).to(tl.uint64))
    bit = tl.arange(0, 64)
    total = tl.zeros((WORDS, 64), tl.float32)
    for i in range(many):
        seed = tl.load(seeds + number + i * apart).to(tl.uint64, bitcast=True)
        sign = (_mix(counter ^ seed)[:, None] >> bit[None, :].to(tl.uint64)) & 1
        amount = tl.load(amounts + number + i * apart)
        total += tl.where(sign == 1, amount, -amount)
    index = place[:, None] * 64 + bit[None, :]
    tl.store(out + index, total, mask=index < size)


@triton.jit(do_not_specialize=["size", "first", "seed"])
def _round_at_random(value, out, size, first, seed, SPARE: tl.constexpr, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < size
    # A word has the random bits of four numbers, those of the first lowest.
    word = _mix(
        _mix((first + index // 4 + 1).to(tl.uint64)) ^ seed.to(tl.int64).to(tl.uint64, bitcast=True)
    )
    spare = (1 << SPARE) - 1
    chance = ((word >> ((index % 4) * 16).to(tl.uint64)) & spare).to(tl.int32)
    bits = tl.load(value + index, mask=inside).to(tl.int32, bitcast=True)
    cut = ((bits + chance) & ~spare).to(tl.float32, bitcast=True)
    tl.store(out + index, cut.to(out.dtype.element_ty), mask=inside)


def round_at_random(
    value: torch.Tensor, out: torch.Tensor, first: int, seed: int, spare: int
) -> torch.Tensor:
    """As `signs.round_at_random`, by words from `first` on, into `out`; both are contiguous."""
    grid = (triton.cdiv(out.numel(), _NUMBERS),)
    with torch.cuda.device(out.device):
        _round_at_random[grid](value, out, out.numel(), first, seed, SPARE=spare, BLOCK=_NUMBERS)
    return out


def sum_signs(
    out: torch.Tensor,
    first: int,
    seeds: torch.Tensor,
    amounts: torch.Tensor,
    number: int,
    apart: int,
    many: int,
) -> torch.Tensor:
    """As `signs.sum_signs`, by words from `first` on."""
    grid = (triton.cdiv(out.numel(), 64 * _WORDS),)
    with torch.cuda.device(out.device):
        _sum_signs[grid](out, out.numel(), first, seeds, amounts, number, apart, many, WORDS=_WORDS)
    return out


def add_signs(
    source: torch.Tensor, seeds: torch.Tensor, amounts: torch.Tensor, number: int, out: torch.Tensor
) -> torch.Tensor:
    """As `signs.add_signs`."""
    wide = tl.float64 if out.dtype == torch.float64 else tl.float32
    size = source.numel()
    grid = (triton.cdiv(size, 64 * _WORDS),)
    with torch.cuda.device(source.device):
        _add_signs[grid](source, out, size, seeds, amounts, number, WORDS=_WORDS, WIDE=wide)
    return out
