"""The factor C of a mechanism: what a block's increments are multiplied by before noise joins them.

The gate releases y = C m + z for a block of increments m_1 .. m_T, with independent noise z. Privacy
is read off the columns of C, and nothing else about a mechanism matters for it. With A the
lower-triangular ones and B = A C^-1, the running sums are B y = A m + B z: post-processing, done
outside (`optimize.prefix`). Every entry of C lies between 0 and 1.

Here are independent noise, the paper's tree, and two Toeplitz matrices, the square root and a few
fading buffers (BLT). No mechanism is believed: `check_mechanism` computes what the columns of these
cost, and measures those of one that is defined elsewhere.
"""

from __future__ import annotations

import abc
import math
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from blindstep.errors import InvalidArgument, Names, count

_ROUND_UP = 1 + 1e-12  # covers the rounding of BLT's norms, some 1e-15, and any backend's expm1
State = Float[Array, "slots size"]
Vector = Float[Array, " size"]
Place = Int[Array, ""]
PerStep = Float[np.ndarray, " steps"]
Increments = Float[np.ndarray, "steps size"]
_MOST_MEASURED = 1024  # up to this length a block is measured: in a moment and 8 MiB


class Mechanism(eqx.Module):
    """A lower-triangular matrix C of size `steps`, with entries in [0, 1].

    A subclass with a `name` of its own can be asked for by that name. All its fields must be static:
    equal mechanisms are one.
    """

    name: ClassVar[str]
    steps: int = eqx.field(static=True, converter=lambda n: count("steps", n))

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        MECHANISMS.add(cls)

    @property
    def roundings(self) -> int:
        """The most relative roundings of 2^-53 between increments and (C m)_t: a few for each step."""
        return 4 * (self.steps + 8) if self.steps > 1 else 0

    @abc.abstractmethod
    def init(self, size: int) -> State:
        """The streaming state before a block's first increment."""

    @abc.abstractmethod
    def next(self, state: State, increment: Vector, place: Place) -> tuple[State, Vector]:
        """Take the increment at `place` = 0 .. steps - 1 of the block and give (C m) there."""

    def column_norms(self) -> PerStep:
        """Euclidean norms of the columns of C, never too small; of zeros and ones, roots of counts."""
        return np.sqrt(self.column_counts())

    def column_counts(self) -> PerStep:
        """How many entries of each column of C are not 0, at most: here, all from the diagonal on."""
        return np.arange(self.steps, 0, -1, dtype=np.float64)


MECHANISMS: Names[type[Mechanism]] = Names("mechanism")


class Independent(Mechanism):
    """C is the identity: each increment is released once, with noise of its own."""

    name: ClassVar[str] = "independent"

    def init(self, size: int) -> State:
        """Nothing to remember."""
        return jnp.zeros((0, size))

    def next(self, state: State, increment: Vector, place: Place) -> tuple[State, Vector]:
        """The increment itself."""
        return state, increment

    def column_counts(self) -> PerStep:
        """Ones."""
        return np.ones(self.steps)


class BinaryTree(Mechanism):
    """The paper's tree mechanism (Algorithm alg:tree), as the Fenwick tree it is.

    Release t (from 1) is the node that ends at t and covers the increments (t - lowbit(t), t].
    Increment i enters the nodes i, i + lowbit(i), ... up to `steps`, at most floor(log2 steps) + 1 of
    them (erratum 1: the paper's 2 ln T is false at T = 1, 2, 4).
    """

    name: ClassVar[str] = "tree"

    def init(self, size: int) -> State:
        """One slot for each level: the finished node of that level which no larger one has joined."""
        return jnp.zeros((self.steps.bit_length(), size))

    def next(self, state: State, increment: Vector, place: Place) -> tuple[State, Vector]:
        """The node that ends here: the increment and the finished nodes of all levels below it."""
        end = jnp.asarray(place) + 1
        levels = jnp.arange(state.shape[0])
        lowbit = end & -end
        here, below = (lowbit >> levels) == 1, (lowbit >> levels) > 1
        node = increment + jnp.sum(jnp.where(below[:, None], state, 0.0), axis=0)
        state = jnp.where(here[:, None], node, jnp.where(below[:, None], 0.0, state))
        return state, node

    def column_counts(self) -> PerStep:
        """The number of nodes i, i + lowbit(i), ... up to `steps`."""
        node = np.arange(1, self.steps + 1)
        nodes = np.zeros(self.steps)
        while (inside := node <= self.steps).any():
            nodes += inside
            node += node & -node
        return nodes


class ColumnNormalised(Mechanism):
    """C = T D^-1: a lower-triangular Toeplitz matrix T with its columns scaled to norm 1.

    T has coefficients c_0 = 1, c_1, ... >= 0, and D = diag(n_1, .., n_T) with n_i >= |column i of T|,
    rounded up by more than the error of computing it: so |column i of C| <= 1 (`_computed` compares).
    Late columns of T are shorter than the first one; dividing by n_i gives them the same norm, which
    costs no privacy and takes noise off later sums.
    """

    @abc.abstractmethod
    def coefficients(self) -> PerStep:
        """c_0 = 1, c_1, ..."""

    @abc.abstractmethod
    def scaling(self) -> PerStep:
        """n_1, .., n_T."""

    def column_norms(self) -> PerStep:
        """Ones. The truth is below it by no more than the rounding of `scaling`."""
        return np.ones(self.steps)


class SquareRoot(ColumnNormalised):
    """The square root of A: c_k = binom(2k, k) / 4^k, the coefficients of (1 - x)^(-1/2).

    (Bennett 1977; Fichtenberger, Henzinger and Upadhyay 2023.) Its state holds all increments of a
    block, and each release reads all of it. `BLT` is as accurate with a few vectors.
    """

    name: ClassVar[str] = "sqrt"

    def init(self, size: int) -> State:
        """Slot i holds m_i / n_i."""
        return jnp.zeros((self.steps, size))

    def next(self, state: State, increment: Vector, place: Place) -> tuple[State, Vector]:
        """sum over i <= place of c_(place - i) m_i / n_i."""
        state = state.at[place].set(increment / jnp.asarray(self.scaling())[place])
        lag = place - jnp.arange(self.steps)
        weights = jnp.asarray(self.coefficients())[jnp.maximum(lag, 0)]
        # Not a matrix product: an accelerator may round its factors.
        return state, jnp.sum(jnp.where(lag >= 0, weights, 0.0)[:, None] * state, axis=0)

    def coefficients(self) -> PerStep:
        """binom(2k, k) / 4^k."""
        return square_root(self.steps)[0]

    def scaling(self) -> PerStep:
        """Column norms of T, rounded up by steps x 2^-50 relative."""
        return square_root(self.steps)[1]


class BLT(ColumnNormalised):
    """Buffered linear Toeplitz: c_0 = 1, c_k = sum_b omega_b theta_b^(k-1) with a few buffers b.

    (Dvijotham, McMahan, Pillutla, Steinke and Thakurta 2024.) Streaming needs no memory of the block:
    with u = m_t / n_t, (C m)_t = u + sum_b omega_b s_b, then s_b <- theta_b s_b + u. Parameters come
    from a table: equal `steps` give equal parameters to the last bit.
    """

    name: ClassVar[str] = "blt"
    decays: tuple[float, ...] = eqx.field(static=True)  # theta of each buffer
    scales: tuple[float, ...] = eqx.field(static=True)  # omega of each buffer

    def __init__(self, steps: int) -> None:
        self.steps = count("steps", steps)
        # Linear in `steps` between two rows of the table; past the last row that is used unchanged.
        rows = next((group for group in TABLE if self.steps <= group[-1, 0]), TABLE[-1])
        above = np.searchsorted(rows[:, 0], self.steps, side="right")
        low, high = rows[above - 1], rows[min(above, len(rows) - 1)]
        fraction = (self.steps - low[0]) / max(high[0] - low[0], 1.0)
        times, scales = np.split((low + fraction * (high - low))[1:], 2)
        self.decays, self.scales = tuple((1 - 1 / times).tolist()), tuple(scales.tolist())

    def init(self, size: int) -> State:
        """One slot for each buffer."""
        return jnp.zeros((len(self.decays), size))

    def next(self, state: State, increment: Vector, place: Place) -> tuple[State, Vector]:
        """The scaled increment and what the buffers remember; each buffer fades and takes it in."""
        scaled = increment / self.norm_of_column(jnp.asarray(place))
        total = scaled
        for scale, buffer in zip(self.scales, state, strict=True):
            total = total + scale * buffer
        return jnp.asarray(self.decays)[:, None] * state + scaled, total

    def coefficients(self) -> PerStep:
        """1, then sum_b omega_b theta_b^(k-1)."""
        k = np.arange(self.steps - 1, dtype=np.float64)
        pairs = zip(self.decays, self.scales, strict=True)
        return np.concatenate([[1.0], sum(scale * decay**k for decay, scale in pairs)])

    def scaling(self) -> PerStep:
        """Column norms of T, rounded up by 1e-12 relative."""
        return self._norm(np.arange(self.steps - 1, -1, -1, dtype=np.float64), np)

    def norm_of_column(self, place: Place) -> Float[Array, ""]:
        """`scaling` at one place, where the place is known only while a program runs."""
        return self._norm((self.steps - 1 - place).astype(jnp.float64), jnp)

    def _norm(self, remaining: Any, xp: Any) -> Any:
        """sqrt(c_0^2 + ... + c_remaining^2), rounded up. `xp` is jax.numpy inside a program, or numpy.

        The square is 1 + sum_ab omega_a omega_b (1 - (theta_a theta_b)^remaining) / (1 - theta_a
        theta_b). No term is negative and powers go through expm1, so nothing cancels.
        """
        square = 1.0
        logs = [math.log(theta) for theta in self.decays]
        for a, (log_a, omega_a) in enumerate(zip(logs, self.scales, strict=True)):
            for b in range(a + 1):
                rate = log_a + logs[b]
                weight = (1 if a == b else 2) * omega_a * self.scales[b] / -math.expm1(rate)
                square = square + weight * -xp.expm1(remaining * rate)
        return xp.sqrt(square) * _ROUND_UP


@lru_cache(maxsize=8)
def square_root(steps: int) -> tuple[PerStep, PerStep]:
    """binom(2k, k) / 4^k, and the column norms of their Toeplitz matrix, rounded up.

    With u = 2^-53, coefficient k is a product of k rounded quotients (2k u), its square is off by at
    most (4k + 1) u, the sum of `steps` of them by (5 steps + 1) u and its root by (2.5 steps + 2) u:
    less than the 8 steps u that are added. Kept: an eager run asks for them at every release.
    """
    k = np.arange(1, steps)
    coefficients = np.concatenate([[1.0], np.cumprod((2 * k - 1) / (2 * k))])
    norms = np.sqrt(np.cumsum(coefficients**2))[::-1] * (1 + steps * 2.0**-50)
    coefficients.setflags(write=False)
    norms.setflags(write=False)
    return coefficients, norms


class Columns(NamedTuple):
    """The Euclidean norm of each column of C, never too small, and the number of releases it enters."""

    norms: PerStep
    counts: PerStep


def check_mechanism(mechanism: Mechanism) -> Columns:
    """What the columns of C cost, as the accounting may count it; refuses what claims too little.

    Guarantee, for C in real numbers: no column is longer than its norm here, no column has more
    entries that are not 0 than its count, and all entries lie between 0 and 1. Independent noise and
    the tree have zeros and ones by definition. SquareRoot and BLT are summed up from their
    coefficients. Any other class, a subclass of these too, is measured, up to 1,024 releases: a 1 is
    streamed through every column, and random increments must give what the matrix seen says, so that
    C is linear. Code that behaves differently in a run cannot be found so: read it before you use it.
    """
    if jax.tree.leaves(mechanism):
        raise _refused(mechanism, "has a field that is not static: use eqx.field(static=True)")
    return _checked(mechanism)


@lru_cache(maxsize=256)
def _checked(mechanism: Mechanism) -> Columns:
    if type(mechanism) in (Independent, BinaryTree):
        return Columns(mechanism.column_norms(), mechanism.column_counts())
    if isinstance(mechanism, SquareRoot | BLT) and type(mechanism) in (SquareRoot, BLT):
        return _computed(mechanism)
    return _measured(mechanism)


def matrix_of(mechanism: Mechanism) -> Float[np.ndarray, "steps steps"]:
    """C as the gate streams it, dense."""
    return _streamed(mechanism, np.eye(mechanism.steps))


def _computed(mechanism: SquareRoot | BLT) -> Columns:
    """Columns of norm at most 1, after comparing the coefficients with the scaling.

    c_k^2 is rounded up and split into whole multiples of 2^-40 and of 2^-80. Below 2^22 of them int64
    adds up exactly, so what is left are the roundings of a few operations, 2^-51 in all.
    """
    coefficients, scaling = mechanism.coefficients(), mechanism.scaling()
    squares = coefficients**2 * (1 + 2.0**-51) * 2.0**40
    fine = np.ceil((squares - np.floor(squares)) * 2.0**40).astype(np.int64)
    coarse = np.floor(squares).astype(np.int64)
    norms = np.sqrt(np.cumsum(coarse) * 2.0**-40 + np.cumsum(fine) * 2.0**-80) * (1 + 2.0**-51)
    if not (np.all(coefficients >= 0) and np.all(coefficients <= 1)):
        raise _refused(mechanism, "has a coefficient that is not between 0 and 1")
    if not np.all(norms[::-1] <= scaling):
        raise _refused(mechanism, "has columns longer than 1: its scaling is too small")
    return Columns(mechanism.column_norms(), mechanism.column_counts())


def _measured(mechanism: Mechanism) -> Columns:
    """The columns that are seen when C streams the identity, rounded up."""
    steps = mechanism.steps
    if steps > _MOST_MEASURED:
        raise _refused(
            mechanism, f"has {steps} releases in a block, and at most {_MOST_MEASURED} are measured"
        )
    matrix = matrix_of(mechanism)
    if not (np.all(matrix >= 0) and np.all(matrix <= 1) and np.all(np.triu(matrix, 1) == 0)):
        raise _refused(mechanism, "has no lower-triangular C with entries between 0 and 1")
    off = mechanism.roundings * 2.0**-53
    random = np.random.default_rng(0)
    increments = random.normal(size=(steps, 4)) * 10.0 ** random.uniform(-6, 6, (steps, 1))
    streamed, size = _streamed(mechanism, increments), matrix @ np.abs(increments)
    if not np.all(np.abs(streamed - matrix @ increments) <= 2 * (off + steps * 2.0**-52) * size):
        raise _refused(mechanism, "does not release C m: it is not linear, or rounds more")
    seen = np.linalg.norm(matrix, axis=0) * (1 + (steps + 4) * 2.0**-53)
    counted = np.count_nonzero(matrix, axis=0).astype(np.float64)
    norms, counts = mechanism.column_norms(), mechanism.column_counts()
    for name, said, true in (("long", norms, seen), ("full", counts, counted)):
        if said.shape != (steps,) or not np.all(said >= true * (1 - off - steps * 2.0**-51)):
            raise _refused(mechanism, f"has columns that are not as {name} as it says: more")
    return Columns(np.maximum(norms, seen * (1 + off)), np.maximum(counts, counted))


def _streamed(mechanism: Mechanism, increments: Increments) -> Increments:
    def step(state: Array, each: tuple[Array, Array]) -> tuple[Array, Array]:
        return mechanism.next(state, each[1], each[0])

    with jax.enable_x64(True):
        start, places = mechanism.init(increments.shape[1]), jnp.arange(mechanism.steps)
        return np.asarray(jax.lax.scan(step, start, (places, jnp.asarray(increments)))[1])


def _refused(mechanism: Mechanism, reason: str) -> InvalidArgument:
    return InvalidArgument(
        f"the mechanism {type(mechanism).__name__} {reason}. What a release costs is read off the "
        "columns of C: mend the mechanism, or use one of blindstep's."
    )


# Parameters of BLT, made by `scripts/blt_parameters.py`: only accuracy rests on them, never privacy.
# For each number of buffers, a line for each horizon: it, time constants 1 / (1 - theta), scales omega.
_TEXT = """
1 1.10693 3.5259 0.000494082 0.489653
2 1.10693 3.5259 0.000494082 0.489653
4 1.10693 3.5259 0.00049411 0.520052
8 1.10641 6.19813 0.0575627 0.460231
16 1.58869 11.6841 0.14867 0.363613
32 2.18087 21.8772 0.225509 0.279919
64 2.90855 39.7336 0.278583 0.216554

64 1.48937 4.61017 45.4405 0.115598 0.193381 0.195276
128 1.87011 7.99619 89.7806 0.180581 0.180253 0.140721
256 2.28155 13.1563 173.113 0.22974 0.16543 0.102886
512 2.76376 20.9871 326.592 0.267301 0.149172 0.0761944
1024 3.34472 32.9103 607.042 0.295204 0.132662 0.0569027
2048 4.05163 51.0454 1117.29 0.314592 0.116777 0.0427256

2048 2.36055 13.8746 101.855 1418.48 0.237336 0.157829 0.0651992 0.0359271
4096 2.71634 19.6761 172.973 2707.97 0.26454 0.147753 0.0539973 0.0263148
8192 3.13053 27.6878 289.84 5119.34 0.286688 0.136571 0.0447232 0.019389
16384 3.61124 38.7347 480.741 9608.18 0.304071 0.125097 0.0370261 0.0143483
32768 4.1734 53.9674 791.686 17946.6 0.31699 0.113762 0.0306237 0.010648

32768 2.68814 19.1524 161.814 1434.79 22360.3 0.262736 0.148549 0.0536418 0.0187904 0.0091143
65536 3.00696 25.1439 245.39 2488.94 42653.6 0.281008 0.1398 0.0464383 0.0150589 0.0066695
131072 3.37098 32.9458 370.027 4287.54 80971.2 0.296315 0.130614 0.0400974 0.0120773 0.00489438
262144 3.77899 43.0187 555.274 7346.29 153157 0.308668 0.121512 0.0345676 0.00968673 0.00359937
524288 4.24624 56.1182 830.288 12531.2 288897 0.31827 0.112465 0.0297379 0.00776761 0.00265128
1048576 4.77557 73.1003 1237.56 21288.6 543714 0.325312 0.103717 0.0255365 0.00622739 0.00195554
"""
TABLE = [np.loadtxt(group.split("\n")) for group in _TEXT.strip().split("\n\n")]
