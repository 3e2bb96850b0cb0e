"""How a structured frame is put together: its levels, its blocks, and the algebra of its turns."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

# Blocks may be this many times as long as they must be if there are then at least so many of them.
_LONGER, _MANY = 4, 8


@dataclass(frozen=True)
class Level:
    """A frame of `number` directions in dimension `size`, and how it comes from smaller ones."""

    number: int
    size: int

    @property
    def odd(self) -> bool:
        """Whether the frame is the reflection of one in dimension size - 1."""
        return self.size % 2 == 1

    @property
    def complete(self) -> bool:
        """Whether the vector that defines the reflection is the last direction."""
        return self.odd and self.number == self.size

    @property
    def ways(self) -> int:
        """Number p of smaller frames that are turned into one.

        Two where a reflection follows: it joins the pieces, and few long ones are joined faster.
        """
        ways = 2
        while (
            not self.odd
            and ways < 8
            and self.size // 2 % ways == 0
            and ways < self.number - self.complete
        ):
            ways *= 2
        return ways

    @property
    def below(self) -> Level:
        """Each of the p smaller frames."""
        return Level(
            -(-(self.number - self.complete) // self.ways), self.size // 2 * 2 // self.ways
        )

    @property
    def normals(self) -> int:
        """Normal draws for the whole frame: a leaf; or angles, a reflection if odd, and all below."""
        if self.number == 1:
            return self.size
        angles = sum(k * (self.size // 2 // k + 1) for k in (1, 2, 4) if k < self.ways)
        return angles + (self.size if self.odd else 0) + self.ways * self.below.normals

    @property
    def signs(self) -> int:
        """Random signs for the whole frame: p for each direction below."""
        if self.number == 1:
            return 0
        return self.ways * (self.below.number + self.below.signs)


def cut(number: int, dim: int) -> list[tuple[int, int]]:
    """Blocks as (how many, of which size): powers of two, and one block for what is left.

    Where there would be many short ones, fewer that are longer: they take fewer draws and weights.
    """
    size = 1 << (number - 1).bit_length()
    if dim >= _MANY * _LONGER * size:
        size *= _LONGER
    copies, left = divmod(dim, size)
    if 0 < left < number:
        copies, left = copies - 1, left + size
    return [block for block in ((copies, size), (1, left)) if 0 not in block]


@functools.cache
def products(ways: int) -> Float[np.ndarray, "ways ways ways"]:
    """Products of the units of complex numbers (2), quaternions (4), octonions (8).

    e_w e_k = sum_v t[k, w, v] e_v, by doubling (Cayley and Dickson): (a, b)(c, d) = (a c - d* b,
    d a + b c*). Norms multiply, and so sum_k x_k t[k] is orthogonal for every unit vector x.
    """

    def conjugate(x: np.ndarray) -> np.ndarray:
        return np.concatenate([x[:1], -x[1:]])

    def product(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        if x.size == 1:
            return x * y
        (a, b), (c, d) = np.split(x, 2), np.split(y, 2)
        left = product(a, c) - product(conjugate(d), b)
        return np.concatenate([left, product(d, a) + product(b, conjugate(c))])

    units = np.eye(ways)
    return np.array([[product(units[w], units[k]) for w in range(ways)] for k in range(ways)])


def multiplication(
    ways: int,
) -> tuple[Int[np.ndarray, "ways ways"], Float[np.ndarray, "ways ways"]]:
    """Of the matrix of multiplication by x = sum_k x_k e_k: which x_k each entry is, and its sign.

    To be looked up, not multiplied out: an accelerator rounds the factors of a matrix product to 10
    bits, and a frame of such turns would not be orthonormal.
    """
    table = products(ways)
    return np.argmax(np.abs(table), axis=0), np.sum(table, axis=0)
