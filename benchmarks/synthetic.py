"""A nonsmooth, nonconvex problem whose population gradient, gap and Goldstein norm are known.

In units of a = 1 / sqrt(d), with records z in {-1, +1}^d, each entry independent and +1 with
probability p = 0.7,

    f(x, z) = (1 / sqrt d) sum_j | |x_j| - a (2 + z_j / 2) |.

Each coordinate is a W: a ridge at 0 and two valleys whose bottoms move with z. Every f(., z) is
Lipschitz with L = 1 exactly, and |grad f| = 1 wherever there is a gradient: the size of a gradient
says nothing here, only the Goldstein norm does. The population F = E f is piecewise linear with
slope sign(x_j) m(|x_j|) / sqrt(d), where m = -1 below 1.5a, 1 - 2p = -0.4 up to 2.5a, and 1 above.
Its minimum is at |x_j| = 2.5a, a kink, in any of 2^d sign patterns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.optimize import nnls

from blindstep.errors import count, positive

_LIKELY = 0.7
_INNER, _OUTER = 1.5, 2.5
_SLOPES = np.array([-1.0, 1.0 - 2.0 * _LIKELY, 1.0])
_EDGES = np.array([0.0, _INNER, _OUTER, np.inf])


@dataclass(frozen=True)
class Bracket:
    """A Goldstein norm between two proved bounds.

    Attributes:
        upper: the norm of an explicit convex combination of gradients within the radius.
        lower: by duality, no such combination is shorter than this.
    """

    upper: float
    lower: float


@dataclass(frozen=True)
class Valleys:
    """The problem in dimension `dim`; lipschitz is 1."""

    dim: int

    def __post_init__(self) -> None:
        count("dim", self.dim)

    @property
    def unit(self) -> float:
        """a = 1 / sqrt(d)."""
        return 1.0 / math.sqrt(self.dim)

    def records(self, number: int, seed: int) -> Float[np.ndarray, "number dim"]:
        """Independent records z."""
        rng = np.random.default_rng(seed)
        signs = rng.random((number, self.dim), dtype=np.float32) < _LIKELY
        return np.where(signs, 1.0, -1.0).astype(np.float32)

    def start(self) -> Float[np.ndarray, " dim"]:
        """Even coordinates between ridge and valley, at a; odd ones outside it, at 3.5a.

        Signs alternate every two coordinates. Far from stationary at any radius below about 0.3.
        """
        index = np.arange(self.dim)
        size = np.where(index % 2 == 0, 1.0, 3.5)
        return self.unit * size * np.where(index // 2 % 2 == 0, 1.0, -1.0)

    def loss(self, params: Float[Array, " dim"], record: Float[Array, " dim"]) -> Float[Array, ""]:
        """f(x, z)."""
        bottom = self.unit * (2.0 + 0.5 * record)
        return jnp.sum(jnp.abs(jnp.abs(params) - bottom)) * self.unit

    def value(self, params: Float[np.ndarray, " dim"]) -> float:
        """F(x) = E f(x, z), exactly."""
        size = np.abs(np.asarray(params, np.float64))
        likely, rare = np.abs(size - _OUTER * self.unit), np.abs(size - _INNER * self.unit)
        return float(self.unit * np.sum(_LIKELY * likely + (1.0 - _LIKELY) * rare))

    @property
    def infimum(self) -> float:
        """inf F = 1 - p = 0.3: each coordinate is a off the rare bottom, and d a / sqrt(d) = 1."""
        return 1.0 - _LIKELY

    @property
    def gap(self) -> float:
        """F(start) - inf F: 0.95 for even d."""
        return self.value(self.start()) - self.infimum

    def gradient(self, params: Float[np.ndarray, " dim"]) -> Float[np.ndarray, " dim"]:
        """The gradient of F (at a kink, that of the side further out)."""
        params = np.asarray(params, np.float64)
        piece = np.searchsorted(_EDGES[1:-1] * self.unit, np.abs(params), side="right")
        return self.unit * np.where(params >= 0, 1.0, -1.0) * _SLOPES[piece]

    def goldstein(self, params: Float[np.ndarray, " dim"], radius: float) -> Bracket:
        """The Goldstein norm min |g|, g in the convex hull of grad F over the ball, bracketed.

        Frank-Wolfe with full correction: add the gradient of the ball that is lowest along the
        current shortest combination v, then find the new shortest combination of all (`shortest`).
        Every v is a convex combination of gradients in the ball, so |v| bounds from above; and for
        every unit u, min over the ball of <u, grad F> bounds from below. Stops when they meet to
        1e-3, when no gradient helps, or after 400; the bracket is right in any case. Measured, the
        bounds are within 0.01 of each other at d = 100; in low dimension `lower` is loose, because
        it lets a fraction of a coordinate cross a kink.
        """
        positive("radius", radius)
        params = np.asarray(params, np.float64)
        columns = [self.gradient(params)]
        vector, lower = columns[0], 0.0
        for _ in range(400):
            length = float(np.linalg.norm(vector))
            if length - lower < 1e-3:
                break
            lowest, bound = self._lowest(params, radius, vector / length)
            lower = max(lower, bound)
            if lowest @ vector > length**2 - 1e-9:
                break
            columns.append(lowest)
            vector = shortest(np.stack(columns))
        return Bracket(upper=float(np.linalg.norm(vector)), lower=lower)

    def _lowest(
        self, params: Float[np.ndarray, " dim"], radius: float, along: Float[np.ndarray, " dim"]
    ) -> tuple[Float[np.ndarray, " dim"], float]:
        """A gradient within the ball that is low along `along`, and a bound that none goes below.

        Each coordinate may move to one of six linear pieces, at the cost of its squared distance;
        costs add up to at most radius^2. For a price on cost the coordinates choose independently:
        every price gives a lower bound (Lagrange), and a price high enough a choice that fits.
        """
        signed = np.concatenate([-_SLOPES[::-1], _SLOPES]) * self.unit
        low = np.concatenate([-_EDGES[:0:-1], _EDGES[:-1]]) * self.unit
        high = np.concatenate([-_EDGES[-2::-1], _EDGES[1:]]) * self.unit
        apart = np.maximum(0.0, np.maximum(low - params[:, None], params[:, None] - high))
        # A piece is open: stepping just over its edge costs a hair more than its distance.
        cost = np.where(apart > 0, apart * (1 + 1e-9) + 1e-12, 0.0) ** 2
        gain = along[:, None] * signed

        def choose(price: float) -> tuple[np.ndarray, float, float]:
            total = gain + price * cost
            pick = np.argmin(total, axis=1)
            rows = np.arange(self.dim)
            spent = float(cost[rows, pick].sum())
            return pick, spent, float(total[rows, pick].sum()) - price * radius**2

        cheap, dear = 0.0, 1.0
        while choose(dear)[1] > radius**2:
            dear *= 4.0
        bounds = [choose(cheap)[2], choose(dear)[2]]
        for _ in range(60):
            middle = 0.5 * (cheap + dear)
            _, spent, bound = choose(middle)
            bounds.append(bound)
            cheap, dear = (middle, dear) if spent > radius**2 else (cheap, middle)
        pick, spent, _ = choose(dear)
        pick = _fill(pick, gain, cost, radius**2 - spent)
        return signed[pick], max(bounds)


def _fill(pick: np.ndarray, gain: np.ndarray, cost: np.ndarray, left: float) -> np.ndarray:
    """Spend what is `left` of the budget on further moves that lower the total, best value first."""
    rows = np.arange(len(pick))
    extra = cost - cost[rows, pick][:, None]
    drop = gain[rows, pick][:, None] - gain
    value = np.where(drop > 0, drop / np.maximum(extra, 1e-300), 0.0)
    taken, moved = pick.copy(), np.zeros(len(pick), bool)
    for index in np.argsort(-value, axis=None):
        row, piece = divmod(int(index), cost.shape[1])
        if value[row, piece] <= 0:
            break
        if not moved[row] and extra[row, piece] <= left:
            taken[row], moved[row] = piece, True
            left -= extra[row, piece]
    return taken


def shortest(columns: Float[np.ndarray, "some dim"]) -> Float[np.ndarray, " dim"]:
    """The shortest vector in the convex hull of the rows, by nonnegative least squares.

    min over w >= 0 of |sum_i w_i g_i|^2 + (1 - sum_i w_i)^2. With w = s times convex weights and
    v their combination, the best s leaves |v|^2 / (1 + |v|^2), which grows with |v|: so
    w / sum(w) are the weights of the shortest combination, exactly.
    """
    stacked = np.vstack([columns.T, np.ones(len(columns))])
    target = np.zeros(columns.shape[1] + 1)
    target[-1] = 1.0
    weights, _ = nnls(stacked, target)
    return (weights / weights.sum()) @ columns
