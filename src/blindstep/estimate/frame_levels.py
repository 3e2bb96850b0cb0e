"""How a structured frame is divided: into blocks of columns, and each block into levels.

`frames.Structured` says why; `frame_building` computes the frames.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

# Blocks become BLOCK_FACTOR times as long as they must be if at least MIN_BLOCKS remain.
BLOCK_FACTOR, MIN_BLOCKS = 4, 8


@dataclass(frozen=True)
class Level:
    """A frame of `rows` directions in dimension `dim`, and how it comes from smaller frames.

    One row is a normalised Gaussian vector. More rows come from p = `fan_in` child frames, whose rows
    are joined and turned; if `dim` is odd, this gives a frame in dim - 1, which is then reflected.
    """

    rows: int
    dim: int

    @property
    def reflected(self) -> bool:
        """Whether the frame is the reflection of one in dimension dim - 1."""
        return self.dim % 2 == 1

    @property
    def axis_is_row(self) -> bool:
        """Whether the axis of the reflection is the last row: there are as many rows as dimensions."""
        return self.reflected and self.rows == self.dim

    @property
    def fan_in(self) -> int:
        """p, the number of child frames: 2, 4 or 8.

        2 if a reflection follows. It needs joined rows, and few long pieces are joined faster.
        """
        fan_in = 2
        while (
            not self.reflected
            and fan_in < 8
            and self.dim // 2 % fan_in == 0
            and fan_in < self.rows - self.axis_is_row
        ):
            fan_in *= 2
        return fan_in

    @property
    def child(self) -> Level:
        """Each of the p child frames. One row of all of them makes p rows of this frame."""
        turned_rows = self.rows - self.axis_is_row
        return Level(-(-turned_rows // self.fan_in), self.dim // 2 * 2 // self.fan_in)

    @property
    def normals(self) -> int:
        """Normal draws for the whole frame: a single row, or turns, an axis, and all children."""
        if self.rows == 1:
            return self.dim
        turns = sum(k * (self.dim // 2 // k + 1) for k in (1, 2, 4) if k < self.fan_in)
        return turns + (self.dim if self.reflected else 0) + self.fan_in * self.child.normals

    @property
    def signs(self) -> int:
        """Random signs for the whole frame: p for each row of the children, and the children's."""
        if self.rows == 1:
            return 0
        return self.fan_in * (self.child.rows + self.child.signs)


def blocks(directions: int, dim: int) -> list[tuple[int, int]]:
    """Cut `dim` columns into blocks, each with room for `directions` rows: (copies, block dim) pairs.

    Blocks are powers of two, and one block takes what is left. Where there would be very many, they
    are made longer: fewer blocks need fewer draws and weights.
    """
    size = 1 << (directions - 1).bit_length()
    if dim >= MIN_BLOCKS * BLOCK_FACTOR * size:
        size *= BLOCK_FACTOR
    copies, left = divmod(dim, size)
    if 0 < left < directions:
        copies, left = copies - 1, left + size
    return [block for block in ((copies, size), (1, left)) if 0 not in block]


@functools.cache
def turn_pattern(p: int) -> tuple[Int[np.ndarray, "p p"], Float[np.ndarray, "p p"]]:
    """(index, sign) such that W = sign * w[index] is an orthogonal matrix for every unit vector w.

    W is multiplication by w, in the complex numbers (p = 2), quaternions (4) or octonions (8). Its
    entries are looked up, not multiplied out: an accelerator rounds the factors of a matrix product
    to 10 bits, and the frame would not be orthonormal.
    """
    units = np.eye(p)
    # table[k, v] is the product e_v e_k, which is plus or minus one of the units.
    table = np.array([[_product(units[v], units[k]) for v in range(p)] for k in range(p)])
    return np.argmax(np.abs(table), axis=0), np.sum(table, axis=0)


def _product(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Cayley and Dickson's product: (a, b)(c, d) = (a c - d* b, d a + b c*). Norms multiply."""
    if x.size == 1:
        return x * y
    (a, b), (c, d) = np.split(x, 2), np.split(y, 2)
    left = _product(a, c) - _product(_conjugate(d), b)
    return np.concatenate([left, _product(d, a) + _product(b, _conjugate(c))])


def _conjugate(x: np.ndarray) -> np.ndarray:
    return np.concatenate([x[:1], -x[1:]])
