"""What a run keeps of its steps: public quantities."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True)
class History:
    """Public quantities of every step: functions of releases alone, so they cost nothing.

    Attributes:
        gradient_norm: norm of each noisy gradient, rounds x horizon.
        move_norm: norm of each step taken, rounds x horizon.
        loss: the noisy mean loss around each point, rounds x horizon, where the plan has a share for
            it (`Plan.curve`); None elsewhere. Each record counts with at most twice its usual loss.
        loss_std: the standard deviation of the noise on each of these; None without them.
    """

    gradient_norm: Float[np.ndarray, "rounds horizon"]
    move_norm: Float[np.ndarray, "rounds horizon"]
    loss: Float[np.ndarray, "rounds horizon"] | None = None
    loss_std: float | None = None
