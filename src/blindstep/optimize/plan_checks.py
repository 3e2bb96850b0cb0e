"""What the choices of a plan must be, each alone and together."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from blindstep.errors import InvalidArgument, count, finite
from blindstep.estimate.signs import Signs
from blindstep.optimize.choices import (
    ESTIMATES,
    GRADIENT,
    NATURAL_SAMPLERS,
    NO_DIRECTIONS,
    PRESETS,
    SAMPLERS,
    SHARINGS,
    moderate_bounds,
    one_of,
    plain_numbers,
)
from blindstep.optimize.prefix import MECHANISMS

if TYPE_CHECKING:
    from blindstep.optimize.plan import Plan

_COUNTS = ("records", "dim", "horizon", "period", "rounds", "first_batch", "diff_batch")
_AMOUNTS = ("radius", "reach", "lipschitz", "gap")
# The largest amount, and one over the smallest: quotients of a user's amounts and counts fit.
_MOST = 1e60


def check(plan: Plan) -> None:
    """Raise unless a run can be made of the plan's choices; makes its numbers Python's own."""
    one_of("preset", plan.preset, PRESETS)
    one_of("mechanism", plan.mechanism, MECHANISMS)
    one_of("estimate", plan.estimate, ESTIMATES)
    one_of("sharing", plan.sharing, SHARINGS)
    plain_numbers(plan, _COUNTS, _AMOUNTS, _MOST)
    if plan.estimate == GRADIENT:
        _check_gradients(plan)
    else:
        scaled = plan.preset == "scaled"
        one_of("sampler", plan.sampler, NATURAL_SAMPLERS if scaled else SAMPLERS)
        plain_numbers(plan, ("directions",), ("smoothing",), _MOST)
    moderate_bounds(plan.bounds, _MOST)
    for name in ("looks", "look_directions", "look_batch"):
        count(name, getattr(plan, name), 0)
    if not 0.0 <= finite("curve", plan.curve) <= 1.0 or (plan.curve and not _has_room(plan)):
        raise InvalidArgument(
            f"curve {plan.curve:g}: a weight from 0 to 1, in a plan of GRADs alone (period 1) along "
            "shared directions or by differentiating, with a clip. Leave it out."
        )
    if not 0.0 <= finite("look_share", plan.look_share) < 1.0:
        raise InvalidArgument(f"look_share {plan.look_share:g}: a share from 0 to below 1.")
    for leaf in plan.look_leaves:
        count("look_leaves", leaf)
    if plan.sides != 2 and (plan.sides != 1 or plan.sampler != Signs.name):
        raise InvalidArgument(f"sides must be 2, or 1 along signs, got {plan.sides!r}.")
    if (plan.looks > 0) != (plan.look_directions * plan.look_batch * plan.look_share > 0):
        raise InvalidArgument(
            "looks, look_directions, look_batch and look_share go together: give all."
        )
    if sum(plan.look_leaves) != (plan.dim if plan.looks else 0):
        raise InvalidArgument("look_leaves must add up to dim in a plan with looks.")
    if plan.horizon % plan.period:
        raise InvalidArgument(
            f"horizon {plan.horizon} is not a multiple of the period {plan.period}: a round is "
            "a whole number of blocks. Change one of them."
        )


def _has_room(plan: Plan) -> bool:
    """Whether the loss can be a coordinate of a record's vector."""
    clipped = plan.bounds.first_clip < math.inf
    apart = plan.sharing == "block" or plan.estimate == GRADIENT
    return plan.period == 1 and apart and clipped


def _check_gradients(plan: Plan) -> None:
    """Raise unless the plan says that there are no directions and that nothing is certified."""
    fixed = {"sampler": NO_DIRECTIONS, "sharing": "record", "directions": 0, "smoothing": 0.0}
    fixed |= {"sides": 2, "lipschitz": None, "gap": None}
    for name, value in fixed.items():
        if getattr(plan, name) != value:
            raise InvalidArgument(
                f"a plan with estimate 'gradient' has {name} {value!r}, got {getattr(plan, name)!r}: "
                "no directions are drawn, and nothing is certified."
            )
    one_of("preset", plan.preset, ("scaled", "tight"))
    plan.bounds.require_finite(needs_diff=plan.period > 1, by_slope=True)
