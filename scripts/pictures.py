"""Draws the pictures of the documentation, each for a light and a dark page.

    python scripts/pictures.py        # writes docs/images/NAME-light.svg and NAME-dark.svg

What they show is computed by the library, not drawn by hand: norms of the mechanisms, gains of the
samplers, exact epsilons.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

from blindstep.estimate.directions import Sphere
from blindstep.estimate.frames import Structured
from blindstep.optimize.prefix import prefix_of
from blindstep.private import accounting
from blindstep.private.mechanisms import MECHANISMS

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "images"
INK = {"light": "#24292f", "dark": "#d5dae1"}
BLUE, ORANGE, GREEN, GREY = "#2f7ed8", "#e07b1a", "#2a9d6f", "#8a929c"


def smoothing(axes: Axes, ink: str) -> None:
    """A loss with kinks, its mean over a ball, and the two probes of one direction."""
    x = np.linspace(-2.2, 2.4, 2001)

    def loss(x: np.ndarray) -> np.ndarray:
        return np.minimum(np.abs(x + 0.8), 0.45 + 0.8 * np.abs(x - 1.1)) + 0.08 * (x > 0.4)

    shifts = np.linspace(-0.4, 0.4, 401)
    mean = np.mean([loss(x + shift) for shift in shifts], axis=0)
    axes.plot(x, loss(x), color=GREY, lw=1.6, label="loss: kinks, a jump, two valleys")
    axes.plot(x, mean, color=BLUE, lw=2.2, label="its mean over a ball of radius h")
    here, h = -0.15, 0.4
    for sign in (-1, 1):
        axes.plot([here + sign * h], [loss(np.array(here + sign * h))], "o", color=ORANGE, ms=8)
    axes.annotate(
        "two values, at x - h u and x + h u,\ngive a slope of the blue curve",
        (here + h, float(loss(np.array(here + h)))),
        (0.0, 0.12),
        color=ink,
        arrowprops={"arrowstyle": "->", "color": ink},
        va="top",
    )
    axes.set_xlabel("parameters")
    axes.set_yticks([])
    axes.set_ylim(-0.25, 1.75)
    axes.legend(loc="upper center", frameon=False, labelcolor=ink)


def pipeline(axes: Axes, ink: str) -> None:
    """The way from people to the next point; what privacy rests on is boxed."""
    axes.set_axis_off()
    axes.set_xlim(0, 10)
    axes.set_ylim(0, 2.6)
    axes.add_patch(
        FancyBboxPatch(
            (3.45, 0.2), 4.75, 1.85, boxstyle="round,pad=0.1", fill=False, ec=GREEN, lw=2
        )
    )
    axes.text(5.8, 2.28, "the gate: blindstep/private", ha="center", color=GREEN, weight="bold")
    steps = [
        (0.15, "people\nanswer at\nx ± h u", GREY),
        (1.75, "one vector\nfor each\nperson", GREY),
        (3.5, "clip each\nperson's\nvector", BLUE),
        (5.1, "add up,\nexactly", BLUE),
        (6.7, "charge the\nledger, add\nsecret noise", BLUE),
        (8.5, "release:\nlearner\nmoves x", ORANGE),
    ]
    for number, (left, words, colour) in enumerate(steps):
        axes.add_patch(
            FancyBboxPatch((left, 0.45), 1.2, 1.2, boxstyle="round,pad=0.06", fill=False, ec=colour)
        )
        axes.text(left + 0.6, 1.05, words, ha="center", va="center", color=ink, fontsize=9)
        if number:
            before = steps[number - 1][0] + 1.27
            arrow = {"arrowstyle": "->", "color": ink}
            axes.annotate("", (left - 0.07, 1.05), (before, 1.05), arrowprops=arrow)


def prefix_noise(axes: Axes, ink: str) -> None:
    """Standard deviation of the noise on the running sum, at the same privacy."""
    steps = 1024
    time = np.arange(1, steps + 1)
    printed = np.sqrt(2 * np.log(steps) * np.bitwise_count(time))
    axes.plot(time, printed, color=GREY, lw=0.6, label="tree, the paper's constant")
    styles = {
        "independent": (ink, 1.2),
        "tree": (ORANGE, 0.6),
        "sqrt": (GREEN, 2.2),
        "blt": (BLUE, 2.2),
    }
    names = {
        "independent": "independent draws",
        "tree": "tree, exact count",
        "sqrt": "square root",
        "blt": "BLT: a few buffers of state",
    }
    for name, (colour, width) in styles.items():
        mechanism = MECHANISMS[name](steps)
        std = prefix_of(mechanism).row_norms() * mechanism.column_norms().max()
        line = "--" if name == "sqrt" else "-"
        axes.plot(time, std, line, color=colour, lw=width, label=names[name])
    axes.set_xlabel("step of a block")
    axes.set_ylabel("noise, standard deviation (mu = 1)")
    axes.set_ylim(0, 34)
    axes.legend(frameon=False, labelcolor=ink, ncols=2)


def gain(axes: Axes, ink: str) -> None:
    """How far one record can move the estimate when each of its differences is at most 1."""
    dims = np.unique(np.logspace(0.5, 4, 40).astype(int))
    rows = [
        (Sphere(), "independent directions (the paper): d", GREY, "-"),
        (Structured(), "orthonormal frame of d directions: sqrt(d)", BLUE, "-"),
    ]
    for sampler, label, colour, line in rows:
        values = [sampler.gain(int(d), int(d)) for d in dims]
        axes.loglog(dims, values, line, color=colour, lw=2.2, label=label)
    axes.loglog(dims, np.full(dims.shape, 4.0), "--", color=GREEN, lw=2.2, label="clipped at 4 L")
    axes.set_xlabel("parameters d")
    axes.set_ylabel("most that one record adds, in L")
    axes.legend(frameon=False, labelcolor=ink)


def epsilons(axes: Axes, ink: str) -> None:
    """Epsilon at delta 1e-5: exactly, and by the formula of the paper (erratum 3)."""
    mu = np.linspace(0.05, 10, 120)
    exact = [accounting.epsilon(float(r), 1e-5) for r in mu]
    axes.plot(mu, exact, color=BLUE, lw=2.2, label="exact")
    printed = 2 * mu * np.sqrt(np.log(1e5))
    axes.plot(mu, printed, "--", color=GREY, lw=1.8, label="2 mu sqrt(ln 1/delta)")
    axes.set_xlabel("mu (Gaussian-DP)")
    axes.set_ylabel("epsilon at delta = 1e-5")
    axes.legend(frameon=False, labelcolor=ink)


PICTURES: dict[str, tuple[Callable[[Axes, str], None], tuple[float, float]]] = {
    "smoothing": (smoothing, (7.0, 3.4)),
    "pipeline": (pipeline, (8.2, 2.3)),
    "prefix-noise": (prefix_noise, (7.0, 3.4)),
    "gain": (gain, (7.0, 3.2)),
    "epsilons": (epsilons, (7.0, 3.0)),
}


def main() -> None:
    """Draw every picture twice."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for theme, ink in INK.items():
        colours = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
        style = dict.fromkeys(colours, ink) | {
            "svg.hashsalt": "blindstep",
            "axes.spines.top": False,
            "axes.spines.right": False,
        }
        with mpl.rc_context(style):
            for name, (draw, size) in PICTURES.items():
                figure, axes = plt.subplots(figsize=size, layout="constrained")
                draw(axes, ink)
                target = FOLDER / f"{name}-{theme}.svg"
                figure.savefig(target, transparent=True, metadata={"Date": None})
                plt.close(figure)


if __name__ == "__main__":
    main()
