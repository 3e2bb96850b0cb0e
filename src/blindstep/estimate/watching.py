"""What a window of a study shows beside the gradient: how content people are, and how many came.

It is in the same release, in four more coordinates, so it is clipped, noised and charged with it. A
person has one of two roles, which follows from their keyed hash:

- most are asked at two points beside where the study stands. Their vector is the gradient's, and
  weight x clip x (how content they were with what they saw; 0; 0; 1);
- the others, the control group, see the start and where the study stands. Theirs is no gradient, and
  clip x (0; k x content with the second; k x content with the first; weight), k^2 = (1 + weight^2) / 2.

Content is 2 loss - 1, from -1 (best) to 1 (worst). So every vector is at most
clip sqrt(1 + 2 weight^2) long. In the last window everybody may be in the control group: that is the
comparison with the start.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from blindstep.private.gate import Contributions

# Coordinates beside the gradient: content with what was shown, with now, with the start; who came.
WATCHED = 4
# What somebody is asked: two points beside, the start and then now, or now and then the start.
BESIDE, START_FIRST, NOW_FIRST = 0, 1, 2
# A window moves nothing if so small a share of the planned number came.
_TOO_FEW = 0.25
# A share of those who came is shown if their number is so many standard deviations of its noise.
_KNOWN = 2.0


class Watching(eqx.Module):
    """Whose answers these are, and how they become coordinates.

    Attributes:
        whose: the number that stands for each person.
        role: what each was asked.
        clip: the longest that a gradient's part is.
        weight: of being content and of having come, against the gradient.
    """

    whose: Int[Array, " people"]
    role: Int[Array, " people"]
    clip: float | Float[Array, ""]
    weight: float | Float[Array, ""]

    def beside(self, slopes: Contributions, answers: Float[Array, "people 2 1"]) -> Contributions:
        """The vectors of these people: their slopes, and what is watched.

        A person's vector depends on their own answers, number and role. With an answer missing it is
        NaN somewhere, so the gate counts it as 0.
        """

        def of(rows: Int[Array, " some"], at: Int[Array, " some"]) -> Float[Array, "some size"]:
            role = self.role[at][:, None]
            content = 2.0 * answers[at, :, 0] - 1.0
            slope = slopes.of(rows, at)
            norm = jnp.linalg.norm(slope, axis=-1, keepdims=True)
            slope = slope * jnp.where(norm > self.clip, self.clip / norm, 1.0)
            slope = jnp.where(role == BESIDE, slope, 0.0)
            shown = self.weight * jnp.mean(content, axis=-1, keepdims=True)
            shown = jnp.where(role == BESIDE, shown, 0.0)
            compared = jnp.where(role == START_FIRST, content[:, ::-1], content)
            compared = jnp.where(role == BESIDE, 0.0, _half(self.weight) * compared)
            came = jnp.full_like(shown, self.weight)
            beside = self.clip * jnp.concatenate([shown, compared, came], axis=-1)
            return jnp.concatenate([slope, beside], axis=-1)

        return Contributions(slopes.batch_size, of, answers=slopes.answers)

    @property
    def least(self) -> float | Float[Array, ""]:
        """The last coordinate of a release in which enough people came."""
        return _TOO_FEW * self.weight * self.clip


def _half(weight: float | Float[Array, ""]) -> Float[Array, ""]:
    return jnp.sqrt((1.0 + jnp.asarray(weight) ** 2) / 2.0)


class Mean(NamedTuple):
    """A mean of what people said, and the standard deviation of the noise on it."""

    value: float
    std: float


class Reading(NamedTuple):
    """What a release showed beside its gradient. A loss is from 0 (best) to 1; None: cannot be told.

    `came` is how many came, as a share of those who were planned.
    """

    came: Mean
    shown: Mean | None
    now: Mean | None
    start: Mean | None
    # by how much the loss is higher now than at the start, for each that was planned
    worse: Mean


def read(
    releases: Float[np.ndarray, "several size"],
    noise: float,
    clip: float,
    weight: float,
    control: float,
    people: float = math.inf,
) -> Reading:
    """What several releases showed together, with this share of the people in the control group.

    `noise` is the standard deviation on each coordinate of one of them. With the number of people who
    were planned in all of them, what chance does among so few is part of what is told.
    """
    shown, now, start, came = np.mean(np.atleast_2d(releases)[:, -WATCHED:], axis=0) / clip
    noise = noise / clip / math.sqrt(len(np.atleast_2d(releases)))
    half = float(_half(weight))
    number = Mean(float(came / weight), noise / weight)
    return Reading(
        number,
        _mean(shown / weight, noise / weight, number, 1.0 - control, people),
        _mean(now / half, noise / half, number, control, people),
        _mean(start / half, noise / half, number, control, people),
        Mean(float((now - start) / half / 2.0), noise / half / math.sqrt(2.0)),
    )


def _mean(total: float, noise: float, came: Mean, share: float, people: float) -> Mean | None:
    """The mean loss of this share of those who came, from the sum of how content they were."""
    if share == 0.0 or came.value < max(_TOO_FEW, _KNOWN * came.std):
        return None
    number = share * came.value
    content = total / number
    # Who is in a group follows from hashes: how many they are varies as well as what they say.
    chance = math.sqrt(number / people)
    std = math.hypot(noise, content * share * came.std, chance) / number
    return Mean(float(np.clip((1.0 + content) / 2.0, 0.0, 1.0)), float(std / 2.0))
