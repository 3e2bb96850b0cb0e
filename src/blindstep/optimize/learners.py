"""Online learners: they choose the next move from released gradients.

Every learner moves by

    Delta <- a Delta + b g,

where Delta is the last move, g the released gradient, and a and b are two numbers made of |g|^2,
|Delta|^2 and <Delta, g>. So a learner sees three numbers and gives back two, and it need not know
whether a move is a vector or the weights of a network: a space applies it (`optimize.machine`).

A learner sees what was released and nothing else. So it cannot weaken privacy, and any step size is
free (erratum 6). To bring one of your own, derive from `Learner`, outside of this package: see
docs/extend.md.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from blindstep.errors import InvalidArgument, Names, finite
from blindstep.private.clip import Scalar


class Pace(eqx.Module):
    """What the plan says about the length of moves.

    Attributes:
        reach: D, the longest move.
        steps: steps in the whole run.
        step: the theorem's step size eta; None where the plan has no bound to take it from.
        widening: how much farther than the plan's smoothing a run that finds its scales should probe:
            more than 1 where the loss is a staircase.
        noise: the standard deviation of the noise on a released gradient along any one direction.
        blur: what random directions add to that in squares, as a share of |g|^2: 0 if all are there.
        value_noise: the standard deviation of the mean loss that a step shows; infinite without one.
    """

    reach: Scalar
    steps: int = eqx.field(static=True)
    step: Scalar | None = None
    widening: Scalar = 1.0
    noise: Scalar = 0.0
    blur: Scalar = 0.0
    value_noise: Scalar = math.inf


class Seen:
    """The numbers that a learner sees. Each is worked out when it is first asked for.

    Attributes:
        value: the mean loss around the point, where the step shows it; else NaN.
    """

    def __init__(
        self,
        gradient_square: Callable[[], Scalar],
        move_square: Callable[[], Scalar],
        product: Callable[[], Scalar],
        value: Scalar = math.nan,
    ) -> None:
        """What works out each of them."""
        self._made, self.value = (gradient_square, move_square, product), value

    @cached_property
    def gradient_square(self) -> Scalar:
        """|g|^2 of the released gradient."""
        return self._made[0]()

    @cached_property
    def move_square(self) -> Scalar:
        """|Delta|^2 of the last move."""
        return self._made[1]()

    @cached_property
    def product(self) -> Scalar:
        """<Delta, g>."""
        return self._made[2]()


class Choice(NamedTuple):
    """What a learner does after a released gradient: Delta <- keep Delta + along g."""

    state: PyTree  # the learner's state from now on
    keep: Scalar  # a
    along: Scalar  # b


class Learner(eqx.Module):
    """An online learner. Its fields are its own settings, plain numbers; all else comes with the pace.

    Attributes:
        name: what a plan's file calls it.
        persists_across_rounds: whether a round goes on where the one before it stopped. The theorem's
            learners start afresh.
    """

    name: ClassVar[str]
    persists_across_rounds: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _KNOWN.add(cls)

    def init(self) -> PyTree:
        """The state at the start of a round."""
        return jnp.zeros(())

    def begin(self, dim: int, pace: Pace) -> PyTree:
        """The same for a learner whose state depends on the number of parameters, or on the plan."""
        return self.init()

    def turn(self, state: PyTree, gradient: Any, value: Scalar, pace: Pace) -> tuple[PyTree, Any]:
        """The released gradient in the learner's own metric: as it is, for most.

        `value` is the mean loss around the point, where the step shows it; else NaN. What is returned
        is the g of the move. Only for points that are flat vectors.
        """
        return state, gradient

    @abc.abstractmethod
    def update(self, state: PyTree, seen: Seen, pace: Pace) -> Choice:
        """The next move, after a released gradient."""

    def probing(self, state: PyTree, pace: Pace) -> Float[Array, ""] | None:
        """The share of the plan's smoothing at which to probe next; None: all of it."""
        return None

    def place(self, uniform: Float[Array, ""]) -> Scalar:
        """Where on its move the next gradient is wanted: anywhere, as the theorem has it."""
        return uniform


_KNOWN: Names[type[Learner]] = Names("learner")


class ConstantStep(Learner):
    """Projected descent with a constant step, Delta <- Pi(Delta - eta g).

    Pi is the nearest point of the ball of radius D. With eta = D / sqrt(sum_t E|g_t|^2) the regret is
    at most D sqrt(sum).
    """

    name: ClassVar[str] = "constant"

    def update(self, state: Float[Array, ""], seen: Seen, pace: Pace) -> Choice:
        """The step is the theorem's."""
        if pace.step is None:
            raise InvalidArgument("a constant step needs the theorem's step size: give lipschitz.")
        return _projected(state, seen, pace.step, pace.reach)


class AdaptiveStep(Learner):
    """Projected descent by norm-AdaGrad: eta_t = sqrt(2) D / sqrt(sum_{s<=t} |g_s|^2).

    It needs no bound on the gradients. Its regret is at most 2 sqrt(2) D sqrt(sum_t |g_t|^2): the
    diameter 2D in the standard bound.
    """

    name: ClassVar[str] = "adaptive"

    def update(self, state: Float[Array, ""], seen: Seen, pace: Pace) -> Choice:
        """The state is the sum of squared norms so far."""
        state = state + seen.gradient_square
        step = jnp.where(state > 0, jnp.sqrt(2.0) * pace.reach / jnp.sqrt(state), 0.0)
        return _projected(state, seen, step, pace.reach)


class Falling(Learner):
    """Descent by steps whose length falls linearly from `reach` to 0, however long the gradient is.

        Delta_{t+1} = -reach (1 - t / steps) g_t / |g_t|,      t = 0 .. steps - 1

    Probes come closer with the steps.

    Attributes:
        nearest: the share of where they began below which probes do not come closer.
    """

    name: ClassVar[str] = "falling"
    persists_across_rounds: ClassVar[bool] = True
    nearest: float | Float[Array, ""] = 0.1

    def update(self, state: Float[Array, ""], seen: Seen, pace: Pace) -> Choice:
        """A step of the length whose turn it is, against the gradient. The state counts steps."""
        norm = jnp.sqrt(seen.gradient_square)
        length = pace.reach * jnp.maximum(1.0 - state / pace.steps, 0.0)
        return Choice(state + 1.0, 0.0, -jnp.where(norm > 0, length / norm, 0.0))

    def probing(self, state: Float[Array, ""], pace: Pace) -> Float[Array, ""]:
        """As the steps fall, and never below `nearest`."""
        return pace.widening * jnp.maximum(1.0 - state / pace.steps, self.nearest)

    def place(self, uniform: Float[Array, ""]) -> float:
        """At the end of the move."""
        return 1.0


class Heeding(Learner):
    """Descent by steps whose length heeds whether gradients go on agreeing with the moves they led to.

        Delta_{t+1} = -reach s_t (1 - t / steps) g_t / |g_t|,      t = 0 .. steps - 1

    The factor s begins at 1. After a move, let c be the cosine between the move and the new gradient's
    way down. Where c is more than noise, s becomes 2^(r c) times what it was: r is `slower` where the
    gradient points back, and where it points on 1 until it first points back, and from then on at most
    `again` for each time in a row that it pointed on. So an answer 1,000 steps away is reached in ten,
    and near an answer steps become as short as it takes. What may be noise changes nothing: then steps
    fall as those of `Falling` do. Probes lie as far out as steps reach.

    Where the mean loss rose beyond its noise, and gradients are less than half as long as before, a
    move led onto a plateau: none of them leads back. So it is taken back, Delta_{t+1} = -Delta_t, and
    the next step is `brake` as long.

    Where recent gradients are hardly longer than their noise, a step is mostly noise, and T such steps
    are a random walk. So a step is shorter by the share 1 - noise^2 / |g|^2 of the gradient that is
    none, but not so short that it would learn nothing: T steps that hear nothing add up to a walk of
    about `walk` sqrt(d), of which a record feels one part in sqrt(d).

    Attributes:
        sure: standard deviations of the noise above which a cosine counts.
        slower: how fast steps become shorter.
        again: how fast they become longer, once they were too long.
        nearest: the share of where they began below which probes do not come closer.
        rise: standard deviations of the noise above which a rise of the loss counts.
        brake: what a step becomes after one.
        walk: how far steps along nothing but noise lead all together, in units of sqrt(d).
        recent: the weight of the last gradient in the mean that says how much is noise.
    """

    name: ClassVar[str] = "heeding"
    persists_across_rounds: ClassVar[bool] = True
    sure: float | Float[Array, ""] = 2.0
    slower: float | Float[Array, ""] = 1.0
    again: float | Float[Array, ""] = 0.25
    nearest: float | Float[Array, ""] = 0.05
    rise: float | Float[Array, ""] = 3.0
    brake: float | Float[Array, ""] = 0.25
    walk: float | Float[Array, ""] = 0.8
    recent: float | Float[Array, ""] = 0.3

    def begin(self, dim: int, pace: Pace) -> Float[Array, "9"]:
        """Steps done, log2 s, whether a gradient ever pointed back, how many in a row pointed on.

        Then the loss and |g| before the last move, whether that move took one back, the recent mean of
        |g|^2, and d.
        """
        return jnp.zeros(9).at[4].set(jnp.inf).at[8].set(dim)

    def update(self, state: Float[Array, "9"], seen: Seen, pace: Pace) -> Choice:
        """A step against the gradient, of the length whose turn it is times what was heeded."""
        done, log, back, row, before, steep, returned, square, dim = state
        norm, moved = jnp.sqrt(seen.gradient_square), jnp.sqrt(seen.move_square)
        doubt = self.rise * jnp.sqrt(2.0) * pace.value_noise
        # Not of a move that took one back: it is not what a gradient led to.
        rose = (seen.value > before + doubt) & (returned == 0) & (moved > 0)
        rose = rose & (norm < _FLAT * steep)
        real = (norm > 0) & (moved > 0) & (returned == 0) & ~rose
        down = -jnp.where(real, seen.product / jnp.where(real, moved, 1.0), 0.0)
        noise = jnp.sqrt(pace.noise**2 + pace.blur * seen.gradient_square)
        cosine = jnp.clip(down / jnp.where(real, norm, 1.0), -1.0, 1.0)
        cosine = jnp.where(jnp.abs(down) > self.sure * noise, cosine, 0.0)
        back = jnp.where(cosine < _BACK, 1.0, back)
        row = jnp.where(cosine > _ON, row + 1.0, 0.0)
        longer = jnp.where(back > 0, jnp.minimum(self.again * row, 1.0), 1.0)
        log = log + jnp.where(cosine > 0, longer, self.slower) * cosine
        log = log + jnp.where(rose, jnp.log2(self.brake), 0.0)
        fresh = jnp.where(done == 0, 1.0, self.recent)
        square = (1.0 - fresh) * square + fresh * seen.gradient_square
        heard = 1.0 - dim * pace.noise**2 / jnp.where(square > 0, square, jnp.inf)
        least = jnp.minimum(self.walk * jnp.sqrt(dim / pace.steps) / pace.reach, 1.0)
        length = pace.reach * _share(done, log, pace) * jnp.maximum(heard, least)
        before, steep = jnp.where(rose, before, seen.value), jnp.where(rose, steep, norm)
        returned = jnp.where(rose, 1.0, 0.0)
        state = jnp.stack([done + 1.0, log, back, row, before, steep, returned, square, dim])
        along = jnp.where(norm > 0, length / jnp.where(norm > 0, norm, 1.0), 0.0)
        return Choice(state, jnp.where(rose, -1.0, 0.0), jnp.where(rose, 0.0, -along))

    def probing(self, state: Float[Array, "9"], pace: Pace) -> Float[Array, ""]:
        """As far as steps, and never below `nearest`."""
        return pace.widening * jnp.maximum(_share(state[0], state[1], pace), self.nearest)

    def place(self, uniform: Float[Array, ""]) -> float:
        """At the end of the move."""
        return 1.0


# Cosines that say that a move went too far, or could have gone on.
_BACK, _ON = -0.2, 0.5
# A gradient so much shorter than the one before is that of a plateau, if the loss is higher there.
_FLAT = 0.5
# Steps never become longer than 2^40 times the reach.
LONGEST = 40.0


def _share(done: Scalar, log: Scalar, pace: Pace) -> Scalar:
    """How long a step is, as a share of the reach."""
    return jnp.exp2(jnp.minimum(log, LONGEST)) * jnp.maximum(1.0 - done / pace.steps, 0.0)


def _projected(state: PyTree, seen: Seen, step: Scalar, reach: Scalar) -> Choice:
    """Pi(Delta - step g): the nearest point of the ball of radius `reach`."""
    square = seen.move_square - 2.0 * step * seen.product + step**2 * seen.gradient_square
    norm = jnp.sqrt(jnp.maximum(square, 0.0))
    scale = jnp.where(norm > reach, reach / norm, 1.0)
    return Choice(state, scale, -scale * step)


def move_norm(seen: Seen, choice: Choice) -> Scalar:
    """|a Delta + b g|, from the three numbers."""
    square = choice.along**2 * seen.gradient_square
    if not (isinstance(choice.keep, float) and choice.keep == 0.0):
        square = square + choice.keep**2 * seen.move_square
        square = square + 2.0 * choice.keep * choice.along * seen.product
    return jnp.sqrt(jnp.maximum(square, 0.0))


def learner_to_dict(learner: Learner) -> dict[str, Any]:
    """A learner as plain numbers, ready for JSON."""
    own = {each.name: getattr(learner, each.name) for each in dataclasses.fields(learner)}
    return {"name": learner.name, **{name: float(value) for name, value in own.items()}}


def learner_named(name: str) -> Learner:
    """The learner of this name with its usual settings; its class must have been defined before."""
    return _KNOWN.find(name)()


def learner_from_dict(given: dict[str, Any]) -> Learner:
    """The learner that `learner_to_dict` wrote; its class must have been defined or imported."""
    rest = dict(given)
    kind = _KNOWN.find(rest.pop("name", None))
    names = {each.name for each in dataclasses.fields(kind)}
    if rest.keys() != names:
        raise InvalidArgument(f"learner {kind.name} has the settings {sorted(names)}, got {given}.")
    if not all(math.isfinite(finite(name, value)) for name, value in rest.items()):
        raise InvalidArgument(f"the settings of a learner are finite numbers, got {given}.")
    return kind(**rest)
