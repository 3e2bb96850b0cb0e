"""A learner that keeps a map: what all releases together say of the slope here, and how it changes.

Gradients are released at one point after the other, each with noise of a known size. If slopes change
in proportion to the way,

    gradient at x + D  =  a + H D,

each release says something about a, the slope where the run stands, and about H, how slopes change. A
Kalman filter puts them together. The rows of (a, H) have the same uncertainty, since all coordinates
of a gradient have the same noise and were seen from the same points: one matrix of d + 1 columns.
A step goes to where the slope would be 0, but no farther than a radius in which the map held so far.

All of it is made of releases, so it costs no privacy.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from blindstep.optimize.learners import LONGEST, Choice, Learner, Pace, Seen
from blindstep.private.clip import Scalar

# Before anything is known, slopes change by about their own length in a unit, give or take as much.
_CURVATURE, _SURE_OF_IT, _LEAST_CURVATURE, _TINY_CURVATURE = 0.5, 4.0, 1e-4, 1e-12
# By how much entries of H differ from what is usual, how much that varies from place to place, how fast
# old steps count less, and how many steps the first guess counts.
_DEVIATION, _VARIES, _FORGET, _EARLY = 2.0, 0.5, 0.9, 3.0
# The share of what slopes change that is not in proportion.
_UNEVEN = 0.03
# Standard deviations of noise beyond which a rise of the loss counts, and beyond which a map is wrong.
_RISE, _OFF = 3.0, 4.0
# The slope at the end of a step, as a share of that at its beginning, beyond which it went too far.
# The share beyond which it held on, and how much faster each such step in a row lets
# the radius grow, once a step was too long.
_BACK, _ON, _AGAIN = -0.25, 0.5, 0.25
# A gradient so much shorter than the one before is that of a plateau, if the loss is higher there.
_FLAT = 0.5
# The variance of a slope of which nothing is known, and the most by which doubt grows at once.
_UNKNOWN, _MOST_DOUBT = 1e8, 1e3
# Halvings that find how strongly a step is held back.
_HALVINGS = 50
_ROUNDING, _LEAST_FALL, _SHORTEST, _TINY = 1e-12, 1e-9, 1e-100, 1e-250


class Survey(eqx.Module):
    """What is known, and where the run stands. Public."""

    slope: Float[Array, " dim"]  # a
    curvature: Float[Array, "dim dim"]  # H
    doubt: Float[Array, "unknowns unknowns"]  # the covariance of each row of (a, H)
    trial: Float[Array, " dim"]  # the step that led here, from where it began
    along: Float[Array, ""]  # the slope along it, where it began
    value: Float[Array, ""]  # the loss there
    norm: Float[Array, ""]  # the length of the gradient there
    bent: Float[
        Array, ""
    ]  # how much slopes changed along steps, weighted by how well that was seen
    weight: Float[Array, ""]  # the sum of these weights
    steepest: Float[Array, ""]  # the most that slopes change in a unit, as far as was seen
    done: Float[Array, ""]  # steps
    log: Float[Array, ""]  # log2 of the radius, as a share of what it falls to by itself
    row: Float[Array, ""]  # steps in a row whose slope held on
    turned: Float[Array, ""]  # 1 once a step led too far
    held: Float[Array, ""]  # 1 if the last step was as long as the radius
    length: Float[Array, ""]  # of the last step

    @property
    def usual(self) -> Float[Array, ""]:
        """By about how much slopes change in a unit along a step."""
        return jnp.maximum(self.bent / self.weight, _LEAST_CURVATURE)


class Surveying(Learner):
    """Steps to where the map says that the slope is 0, within a radius in which the map held so far.

    The radius falls linearly to 0, as the steps of `Heeding` do, times a factor. The factor begins the
    smaller the better gradients stand out from the noise, down to 2^-`caution`: then looking first
    costs little. It grows where the slope along a step was nearly as steep at its end, and shrinks
    where it points back. A step at whose end the slope points back more than it pointed on led up: it
    is taken back, and the next one is at most half as long. So is one after which the loss rose beyond
    its noise and gradients are less than half as long: it led onto a plateau, from which none leads
    back.

    Where noise is most of what is known of the slope, steps are as much shorter as it says, down to a
    share of `least`, and later releases say more. Probes lie about as far out as steps reach.

    Attributes:
        caution: how many times the first radius is halved where there is hardly any noise.
        least: the share of a step that is made whatever the noise.
        nearest: the share of where they began below which probes do not come closer.
        nearest_of_stairs: the same where the loss is a staircase.
        sure: standard deviations of the noise above which a slope along a step counts.
        brake: what a step becomes after one onto a plateau.
    """

    name: ClassVar[str] = "surveying"
    persists_across_rounds: ClassVar[bool] = True
    caution: float | Float[Array, ""] = 4.0
    least: float | Float[Array, ""] = 0.25
    nearest: float | Float[Array, ""] = 0.05
    nearest_of_stairs: float | Float[Array, ""] = 0.3
    sure: float | Float[Array, ""] = 2.0
    brake: float | Float[Array, ""] = 0.25

    def begin(self, dim: int, pace: Pace) -> Survey:
        """Nothing is known."""
        zero, spread = jnp.zeros(()), (_DEVIATION / math.sqrt(dim)) ** 2
        doubt = jnp.diag(jnp.concatenate([jnp.array([_UNKNOWN]), jnp.full(dim, spread)]))
        return Survey(
            slope=jnp.zeros(dim),
            curvature=_CURVATURE * jnp.eye(dim),
            doubt=doubt,
            trial=jnp.zeros(dim),
            along=zero,
            value=zero + jnp.inf,
            norm=zero,
            bent=zero + _CURVATURE * _SURE_OF_IT,
            weight=zero + _SURE_OF_IT,
            steepest=zero + 1.0,
            done=zero,
            log=zero,
            row=zero,
            turned=zero,
            held=zero,
            length=zero + pace.reach * jnp.exp2(-self.caution / 2.0),
        )

    def turn(
        self, state: Survey, gradient: Float[Array, " dim"], value: Scalar, pace: Pace
    ) -> tuple[Survey, Float[Array, " dim"]]:
        """The map with this release, and the next move with its sign changed."""
        dim, norm, size = len(gradient), _norm(gradient), _norm(state.trial)
        noise = pace.noise**2 + jnp.maximum(pace.blur, _ROUNDING) * norm**2 + _ROUNDING**2
        moved = size > _SHORTEST
        at_end = jnp.vdot(state.trial, gradient) / jnp.where(moved, size, 1.0)
        doubt = noise + state.doubt[0, 0]
        survey = _bent(state, moved, at_end, size, doubt)
        known = jnp.minimum(jnp.abs(at_end), -state.along) > self.sure * jnp.sqrt(noise)
        ratio = at_end / jnp.where(state.along < 0, state.along, -1.0)
        ratio = jnp.where(moved & known & (state.along < 0), jnp.clip(ratio, -1.0, 1.0), 0.0)
        rise = _RISE * math.sqrt(2.0) * pace.value_noise
        plateau = moved & (value > state.value + rise) & (norm < _FLAT * state.norm)
        back = plateau | (moved & (at_end + state.along > 2.0 * jnp.sqrt(doubt)))
        survey = _observed(_predicted(survey, state.trial), gradient, noise)
        # Where the slope along the step would be 0 on its way from one end to the other.
        between = state.along / (state.along - jnp.maximum(at_end, -state.along))
        shorter = size * jnp.where(plateau, self.brake, between)
        fall = jnp.maximum(1.0 - state.done / pace.steps, _LEAST_FALL)
        on = (ratio > _ON) & (state.held > 0)
        row = jnp.where(on, state.row + 1.0, 0.0)
        quick = jnp.where(state.turned > 0, jnp.minimum(_AGAIN * row, 1.0), 2.0)
        log = state.log + jnp.where((ratio > 0) & (state.held > 0), quick * ratio, 0.0)
        log = log + jnp.where(ratio < _BACK, ratio, 0.0)
        log = jnp.where(back, jnp.log2(jnp.maximum(shorter, _TINY) / (pace.reach * fall)), log)
        clear = norm / jnp.sqrt(dim * noise)
        first = -jnp.minimum(self.caution, jnp.log2(jnp.maximum(clear, 1.0)))
        log = jnp.where(state.done == 0, first, log)
        returned = jnp.where(back, 1.0, 0.0) * state.trial
        survey = _predicted(survey, -returned)
        radius = self._radius(state.done + 1.0, log, pace)
        step, held = _step(survey, radius)
        heard = 1.0 - dim * survey.doubt[0, 0] / jnp.maximum(_norm(survey.slope) ** 2, _TINY)
        step = step * jnp.maximum(heard, self.least)
        length = _norm(step)
        survey = eqx.tree_at(
            lambda s: (
                s.trial,
                s.along,
                s.value,
                s.norm,
                s.done,
                s.log,
                s.row,
                s.turned,
                s.held,
                s.length,
            ),
            survey,
            (
                step,
                jnp.vdot(step, survey.slope) / jnp.where(length > 0, length, 1.0),
                jnp.where(back, state.value, value),
                jnp.where(back, state.norm, norm),
                state.done + 1.0,
                log,
                row,
                jnp.maximum(state.turned, jnp.where(back | (ratio < _BACK), 1.0, 0.0)),
                jnp.where(held, 1.0, 0.0),
                length,
            ),
        )
        return survey, returned - step

    def update(self, state: Survey, seen: Seen, pace: Pace) -> Choice:
        """The move that the map says."""
        return Choice(state, 0.0, -1.0)

    def probing(self, state: Survey, pace: Pace) -> Float[Array, ""]:
        """About as far as steps."""
        farthest = jnp.minimum(self._radius(state.done, state.log, pace), 2.0 * state.length)
        stairs = jnp.asarray(pace.widening) > 1.0
        nearest = jnp.where(stairs, self.nearest_of_stairs, self.nearest)
        return pace.widening * jnp.maximum(farthest / pace.reach, nearest)

    def place(self, uniform: Float[Array, ""]) -> float:
        """At the end of the move."""
        return 1.0

    def _radius(self, done: Scalar, log: Scalar, pace: Pace) -> Float[Array, ""]:
        fall = jnp.maximum(1.0 - done / pace.steps, 0.0)
        return pace.reach * jnp.exp2(jnp.minimum(log, LONGEST)) * fall


def _bent(
    state: Survey,
    moved: Bool[Array, ""],
    at_end: Float[Array, ""],
    size: Float[Array, ""],
    doubt: Float[Array, ""],
) -> Survey:
    """By how much slopes change, with what the last step showed.

    Along other directions they are expected to change by as much; this expectation is moved with it.
    """
    whole = jnp.where(moved, size, 1.0)
    seen = (at_end - state.along) / whole
    weight = 1.0 / (doubt / whole**2 + (_VARIES * state.usual) ** 2)
    bent = jnp.where(moved, _FORGET * state.bent + weight * seen, state.bent)
    weight = jnp.where(moved, _FORGET * state.weight + weight, state.weight)
    usual = jnp.maximum(bent / weight, _LEAST_CURVATURE)
    ever = jnp.where(state.done > _EARLY, state.steepest, 0.0)
    steepest = jnp.maximum(usual + 1.0 / jnp.sqrt(weight), ever)
    steepest = jnp.where(moved, steepest, state.steepest)
    spread = _spread(state.steepest, len(state.slope))
    unknown = state.doubt[1:, 1:] / spread**2
    factors = jnp.full(len(state.slope) + 1, steepest / state.steepest).at[0].set(1.0)
    return eqx.tree_at(
        lambda s: (s.curvature, s.doubt, s.bent, s.weight, s.steepest),
        state,
        (
            state.curvature + (usual - state.usual) * unknown,
            state.doubt * jnp.outer(factors, factors),
            bent,
            weight,
            steepest,
        ),
    )


def _predicted(state: Survey, way: Float[Array, " dim"]) -> Survey:
    """The map after a way: the slope there, and how sure it is.

    Slopes do not change quite in proportion.
    """
    dim = len(way)
    moved = jnp.eye(dim + 1).at[0, 1:].set(way)
    change = state.curvature @ way
    slope, doubt = state.slope + change, moved @ state.doubt @ moved.T
    doubt = doubt.at[0, 0].add(_UNEVEN**2 * jnp.vdot(change, change) / dim)
    return eqx.tree_at(lambda s: (s.slope, s.doubt), state, (slope, doubt))


def _observed(state: Survey, gradient: Float[Array, " dim"], noise: Float[Array, ""]) -> Survey:
    """The map with a gradient.

    A gradient farther from what was expected than noise and doubt explain says that slopes do not
    change in proportion: then all that is known is doubted more.
    """
    dim = len(gradient)
    wrong = gradient - state.slope
    expected, found = state.doubt[0, 0] + noise, jnp.vdot(wrong, wrong) / dim
    off = (state.done > 0) & (found > expected * (1.0 + _OFF * math.sqrt(2.0 / dim)))
    more = 1.0 + (found - expected) / jnp.maximum(state.doubt[0, 0], _TINY)
    doubt = state.doubt * jnp.where(off, jnp.minimum(more, _MOST_DOUBT), 1.0)
    total = doubt[0, 0] + noise
    weight = doubt[:, 0] / total
    # As a sum of squares: a difference would lose its sign to rounding after a long way.
    left = jnp.eye(dim + 1).at[:, 0].add(-weight)
    doubt = left @ doubt @ left.T + noise * jnp.outer(weight, weight)
    return eqx.tree_at(
        lambda s: (s.slope, s.curvature, s.doubt),
        state,
        (
            state.slope + weight[0] * wrong,
            state.curvature + jnp.outer(wrong, weight[1:]),
            _no_more_than(doubt, _spread(state.steepest, dim)),
        ),
    )


def _no_more_than(
    doubt: Float[Array, "unknowns unknowns"], spread: Float[Array, ""]
) -> Float[Array, "unknowns unknowns"]:
    """Along no direction is less known of how slopes change than before the first step."""
    values, vectors = jnp.linalg.eigh(doubt[1:, 1:])
    factors = jnp.sqrt(jnp.minimum(1.0, spread**2 / jnp.maximum(values, _TINY)))
    within = jnp.eye(len(doubt)).at[1:, 1:].set((vectors * factors) @ vectors.T)
    return within @ doubt @ within


def _step(state: Survey, radius: Float[Array, ""]) -> tuple[Float[Array, " dim"], Bool[Array, ""]]:
    """To where the slope is 0, but within the radius, and whether that held it back.

    H is symmetric in truth, and what was seen of it need not be. Along directions in which the loss
    bends down the step goes as far as if it bent up as much.
    """
    bends, vectors = jnp.linalg.eigh(0.5 * (state.curvature + state.curvature.T))
    slopes, bends = vectors.T @ state.slope, jnp.abs(bends) + _TINY_CURVATURE
    held = _norm(slopes / bends) > radius

    def halved(_: Any, between: tuple[Scalar, Scalar]) -> tuple[Scalar, Scalar]:
        low, high = between
        middle = 0.5 * (low + high)
        too_far = _norm(slopes / (bends + middle)) > radius
        return jnp.where(too_far, middle, low), jnp.where(too_far, high, middle)

    most = _norm(slopes) / jnp.maximum(radius, _TINY)
    _, damping = jax.lax.fori_loop(0, _HALVINGS, halved, (jnp.zeros(()), most))
    return -vectors @ (slopes / (bends + jnp.where(held, damping, 0.0))), held


def _spread(steepest: Float[Array, ""], dim: int) -> Float[Array, ""]:
    """The standard deviation of an entry of H before anything was seen of it."""
    return _DEVIATION * steepest / math.sqrt(dim)


def _norm(vector: Float[Array, " dim"]) -> Float[Array, ""]:
    return jnp.sqrt(jnp.vdot(vector, vector))
