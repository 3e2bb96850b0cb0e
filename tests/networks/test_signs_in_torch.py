"""The same signs everywhere, added with one rounding."""

import jax
import numpy as np
import pytest
import torch

from blindstep.estimate import directions as expected
from blindstep.torch.replay import seeds_of
from blindstep.torch.sign_ops import Shifts, add_signs, round_at_random, sum_signs

SIZES = (100, 7, 64, 130)


def shifts_of(seeds, amounts):
    made = Shifts(len(seeds))
    made.fill(np.asarray(seeds), np.asarray(amounts))
    return made


def test_signs_are_those_of_the_compiled_sampler():
    key, dim = jax.random.key(3), sum(SIZES)
    rows = np.asarray(expected.Signs(SIZES).sample(key, None, 5, dim)) * np.sqrt(dim)
    seeds = seeds_of(np.asarray(expected.key_number(key)), 5, len(SIZES))
    for row, own in zip(rows, seeds, strict=True):
        made = [
            add_signs(torch.zeros(size), shifts_of([seed], [1.0]), 0, torch.empty(size))
            for seed, size in zip(own, SIZES, strict=True)
        ]
        np.testing.assert_array_equal(np.concatenate(made), np.rint(row))


def test_signs_are_fair_and_directions_are_not_alike():
    size = 2**16
    made = [
        add_signs(torch.zeros(size), shifts_of([seed], [1.0]), 0, torch.empty(size))
        for seed in seeds_of(np.uint64(17), 4, 2).ravel()
    ]
    products = np.stack(made) @ np.stack(made).T / size
    assert np.all(np.abs([m.mean() for m in made]) < 5 / np.sqrt(size))
    assert np.max(np.abs(products - np.eye(8))) < 5 / np.sqrt(size)
    # Nor do neighbours go together.
    assert all(abs(float((m[1:] * m[:-1]).mean())) < 5 / np.sqrt(size) for m in made)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_an_addition_is_rounded_once(dtype):
    source = torch.randn(1000, generator=torch.Generator().manual_seed(0)).to(dtype)
    shifts = shifts_of([-5, 123456789012345678], [9.0, 1e-3])
    signs = add_signs(torch.zeros(1000), shifts, 1, torch.empty(1000)).sign()
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    wanted = (source.to(wide) + signs.to(wide) * float(np.float32(1e-3))).to(dtype)
    assert torch.equal(add_signs(source, shifts, 1, torch.empty_like(source)), wanted)


def test_sums_of_whole_numbers_are_exact_in_any_order():
    chance = np.random.default_rng(1)
    seeds, weights = chance.integers(2**63, size=12), np.rint(1e6 * chance.normal(size=12))
    forwards = sum_signs(torch.empty(999), shifts_of(seeds, weights), 1, 3)
    backwards = sum_signs(torch.empty(999), shifts_of(seeds[::-1], weights[::-1]), 1, 3)
    assert torch.equal(forwards, backwards)  # of 1, 4, 7, 10 and of 10, 7, 4, 1
    assert float(forwards.abs().max()) <= np.abs(weights[1::3]).sum()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounding_at_random_has_the_right_mean(dtype):
    value = torch.tensor([0.1, -0.3, 1.2345, -1e-3]).repeat(20_000)
    rounded = round_at_random(value, dtype, 5)
    step = (rounded.float() - value).abs() / value.abs()
    assert float(step.max()) <= 2.0 * torch.finfo(dtype).eps
    means = rounded.double().view(-1, 4).mean(0)
    spread = torch.finfo(dtype).eps * value[:4].abs().double()
    assert torch.all((means - value[:4].double()).abs() < 5 * spread / np.sqrt(20_000))
    assert torch.equal(rounded, round_at_random(value, dtype, 5))
