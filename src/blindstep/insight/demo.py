"""The demonstration: preset `paper` on a small embedded problem, with public simulated people.

A city wants one meeting point. Each record is a person's home; their loss is the distance to the
meeting point, but beyond 3 km they would not come and do not care how far it is: min(distance, 3).
That loss is nonsmooth and nonconvex (two districts), and the homes are private.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from blindstep.drivers.compiled import minimize
from blindstep.trusted.privacy import Privacy, Statement

_PEOPLE = 40_000
_CAP = 3.0
_START = (3.0, -2.0)
# rho = 1000 leaves noise of a thousandth: as good as none, and the same code runs.
_NO_PRIVACY_RHO = 1000.0


def homes() -> Float[np.ndarray, "people 2"]:
    """Simulated homes: a large district around (0, 0) and a smaller one around (4, 3)."""
    rng = np.random.default_rng(20240507)
    large = rng.random(_PEOPLE) < 0.7
    centre = np.where(large[:, None], (0.0, 0.0), (4.0, 3.0))
    return centre + 0.7 * rng.standard_normal((_PEOPLE, 2))


def walk(place: Float[Array, "2"], home: Float[Array, "2"]) -> Float[Array, ""]:
    """Kilometres this person would walk, at most 3."""
    return jnp.minimum(jnp.sqrt(jnp.sum((place - home) ** 2)), _CAP)


@dataclass(frozen=True)
class Story:
    """One row of the demonstration's table."""

    label: str
    epsilon: float | None
    place: tuple[float, float]
    mean_walk: float
    statement: Statement | None


def run(epsilons: tuple[float, ...] = (0.1, 0.3, 1.0), progress: bool = False) -> list[Story]:
    """Run the demonstration: start, each epsilon, without privacy."""
    people = jnp.asarray(homes())
    mean_walk = jax.jit(lambda place: jnp.mean(jax.vmap(walk, (None, 0))(place, people)))
    stories = [Story("start", None, _START, float(mean_walk(jnp.asarray(_START))), None)]
    budgets: list[tuple[str, float | None, Privacy]] = [
        (f"epsilon {e:g}", e, Privacy(epsilon=e)) for e in epsilons
    ]
    budgets.append(("no privacy", None, Privacy(rho=_NO_PRIVACY_RHO)))
    for label, epsilon, budget in budgets:
        result = minimize(
            walk,
            jnp.asarray(_START),
            people,
            privacy=budget,
            radius=2.0,
            lipschitz=1.0,
            gap=_CAP,
            preset="paper",
            horizon=4,
            diff_batch=250,
            progress=progress,
        )
        place = result.last
        stories.append(
            Story(
                label,
                epsilon,
                (float(place[0]), float(place[1])),
                float(mean_walk(place)),
                result.privacy if epsilon is not None else None,
            )
        )
    return stories
