"""The scales of a problem, read from the noisy releases of a few calibrations.

Three scales are unknown when a user brings a loss. All follow from what the calibrations release:

    unit    u: the size of a record's loss at the start, from the histogram of log2 |f|;
    slope   C: the length of a record's slopes, from the histograms of log2 |c| in each leaf;
    axes    A: u / C is the distance over which a slope of that size uses up such a loss (a Polyak
            step). Leaves get units in which their slopes are alike. Coordinates with much of the
            slopes get shorter units than others, from the mean shares; and directions in which the
            slopes of nearly all records agree get shorter ones, from the mean products (columns that
            move together, or far from 0).

In natural units, x = start + A v and f / u, losses and slopes are about 1. So one plan fits all
problems, and features times 100, a loss times 1,000 or parameters times 0.01 change nothing but these
numbers. All of this is public: functions of releases.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Array, Bool, Float

from blindstep.estimate.calibration import FIRST, CalibrationQuery, Parts

# How many calibrations there are. The first finds where to probe, each of the others corrects what the
# ones before it found.
_CALIBRATIONS = 4
# How many standard deviations the shares must vary above their noise to be believed.
_SURE = 3.0
# Directions with less than this share of the mean get no longer units than those with it.
_LEAST_EIGENVALUE = 0.1
# Less than this share of records moved by the probes: they are too close.
_TOO_FEW = 0.2
# Noises that three neighbouring places must hold to be believed. Some of many leaves have no slope at
# all (an adapter's, behind one that starts at 0), and the fullest three of 80 hold 4 noises by chance.
_SURE_ALONE, _SURE_OF_MANY = 2.0, 6.0
# Noise on a place of a histogram beyond which its shape is not to be read.
_HIDDEN = 0.25
# Noise on a place beyond which histograms of all calibrations are read together.
_FAINT = 0.1
# Places that a size is read from: more where two kinds of records may be apart, as right and wrong
# answers of a network are, and a jump from one kind to the other would change the length of all steps.
_WINDOW, _WIDE = 3, 7
# Slopes along axes that differ by less than this are left to shares and products.
_ALIKE = 8.0
# How much farther to probe then, and where nothing is known yet.
_FARTHER, _FIRST_DISTANCE = 16.0, 0.01
# At which share of a natural unit later calibrations probe, for a run whose first steps are short.
NEARER = 0.25
# The length of a step where nothing tells one: of parameters of size 1, and of their own size if more.
_GUESS = 0.3
# In noise alone, sizes near 1 are likelier: a place so many places away must hold more than noise by
# this much for each.
_FARFETCHED = 0.2


class Scales(eqx.Module):
    """Natural units: x = origin + A v, and losses in units of `unit`.

    Attributes:
        origin: where the natural coordinates are 0: the start.
        axes: A. Its columns are the natural axes; a vector is the diagonal of A.
        unit: the unit of the loss.
        jumps: whether the loss is a staircase: slopes grow as probes come closer.
    """

    origin: Float[Array | np.ndarray, " dim"]
    axes: Float[Array | np.ndarray, "dim dim"] | Float[Array | np.ndarray, " dim"]
    unit: Float[Array | np.ndarray, ""]
    jumps: bool = eqx.field(static=True)

    @property
    def lengths(self) -> Float[np.ndarray, " dim"]:
        """How far each parameter moves in a natural step of length 1 that moves it most."""
        axes = np.asarray(self.axes)
        return axes if axes.ndim == 1 else np.linalg.norm(axes, axis=1)

    def place(self, natural: Float[Array | np.ndarray, "*points dim"]) -> Any:
        """The user's parameters at natural coordinates."""
        return self.origin + along(self.axes, natural)

    def natural(self, points: Float[np.ndarray, "*points dim"]) -> Float[np.ndarray, "*points dim"]:
        """The natural coordinates of the user's parameters."""
        moved, axes = points - np.asarray(self.origin), np.asarray(self.axes)
        return moved / axes if axes.ndim == 1 else np.linalg.solve(axes, moved[..., None])[..., 0]


def by_start(start: Float[np.ndarray, " dim"]) -> Scales:
    """Units without a calibration: every parameter's is four times the rms of the start; 1 at 0.

    For plans that ask people (`optimize.questions`), who are not asked for scales.
    """
    size = 4.0 * math.sqrt(float(np.mean(np.square(start))))
    return Scales(start, np.full(len(start), size or 1.0), np.asarray(1.0), False)


def along(axes: Any, natural: Any) -> Any:
    """A v, for each of some v; a vector is the diagonal of A."""
    return axes * natural if axes.ndim == 1 else natural @ axes.T


class Units(NamedTuple):
    """What calibrations find of a problem whose parameters are too many to list."""

    lengths: Float[np.ndarray, " leaves"]  # the natural unit of the parameters in each leaf
    unit: float  # the unit of the loss
    jumps: bool  # whether the loss is a staircase
    seen: Bool[np.ndarray, " leaves"]  # whether any calibration saw a slope in a leaf


class ScaleFinder:
    """Reads calibrations one after the other, and says where the next one probes.

    Attributes:
        calibrations: how many there are.
        distance: h of the next calibration.
        even: a factor for each leaf: probes in it lie that much farther out.
        axes: A of the next calibration, up to a factor: probes lie at origin + A offset.
    """

    calibrations = _CALIBRATIONS

    def __init__(
        self,
        calibration: CalibrationQuery,
        size: float,
        noise: float,
        out: float = 1.0,
        near: float = 1.0,
    ) -> None:
        """Stand before the first calibration.

        Args:
            calibration: what is asked of a record.
            size: the norm of the start.
            noise: the standard deviation on each coordinate of a release.
            out: at how many natural units calibrations probe: more along a few random directions
                of many parameters, of which a record feels little.
            near: the share of that at which later calibrations do.
        """
        self._calibrate, self._noise, self._size, self._out = calibration, noise, size, out
        self._near = near
        self._window = _WINDOW if out == 1.0 else _WIDE
        self.distance = _FIRST_DISTANCE * max(1.0, size)
        self.even = np.ones(len(calibration.leaves))
        self._seen = np.zeros(len(calibration.leaves), bool)
        self._axes = (
            np.eye(calibration.dim)
            if calibration.uses_products
            else np.ones(calibration.dim if calibration.axes else 1)
        )
        self._values, self._counts, self._taken = np.zeros(()), np.zeros(()), 0
        self._slopes: list[tuple[float, float]] = []  # (h, slope) of each calibration that saw one
        self._slope, self._at, self._silent = 1.0, self.distance, False

    @property
    def asks(self) -> float:
        """The distance as the next calibration takes it: below 0 where it shows columns."""
        query = self._calibrate
        columns = query.uses_columns and self._taken == 0 and query.dim > 1
        columns = columns and self._noise <= _HIDDEN * query.shrink / 3.0
        return -self.distance if columns else self.distance

    @property
    def heard_nobody(self) -> bool:
        """Whether no calibration saw a loss or a slope that noise could not have hidden."""
        return not (self._sized or np.any(self._seen)) and self._noise <= _HIDDEN / 3.0

    @property
    def axes(self) -> Float[np.ndarray, "dim dim"] | Float[np.ndarray, " dim"]:
        """A, up to a factor."""
        if self._calibrate.uses_products:  # all parameters are one leaf
            return self._axes
        return self._axes * np.repeat(self.even, self._calibrate.leaves)

    def take(self, release: Float[np.ndarray, " size"]) -> None:
        """Read the release of the next calibration."""
        parts = self._calibrate.parts(release)
        grown = 1.0
        if self.asks < 0:
            shrink = self._calibrate.shrink
            parts = parts._replace(values=parts.values / shrink, slopes=parts.slopes / shrink)
            grown = self._bring_together(parts)
        self._values, self._counts = self._values + parts.values, self._counts + parts.slopes
        self._taken += 1
        noise = self._noise * math.sqrt(self._taken)
        self._unit = _heaviest(self._values, noise, self._window)
        # A loss that is 0 for nearly everybody has no size of its own at the start.
        self._sized = _around_heaviest(self._values) > max(_TOO_FEW * self._taken, 3.0 * noise)
        weight = np.array([_around_heaviest(leaf) for leaf in parts.slopes])
        sure = _SURE_ALONE if len(weight) == 1 else _SURE_OF_MANY
        seen = weight >= max(_TOO_FEW, sure * self._noise)
        self._seen = self._seen | seen
        if not np.any(seen):
            self._silent = True
            self.distance *= _FARTHER
            return
        # Where one calibration is hard to read, all of them together are easier; but not where each
        # has other units for the leaves.
        pooled = len(weight) == 1 and (self._noise > _FAINT or self._out != 1.0)
        slopes = self._counts / self._taken if pooled else parts.slopes
        noise = self._noise / math.sqrt(self._taken) if pooled else self._noise
        sizes = np.array([_heaviest(leaf, noise, self._window) for leaf in slopes])
        self._slope, self._at = grown * float(np.linalg.norm(sizes[seen])), self.distance
        self._slopes.append((self.distance, self._slope))
        if len(self._slopes) > 1:
            self._even(sizes, seen)
            self._stretch(parts)
        self.distance = self._out * self._length()
        first = self._slopes[0][0]
        near = abs(math.log2(self.distance / first)) < 2.0
        if len(self._slopes) == 1 and near and self._out == 1.0:
            self.distance = first / 8.0  # elsewhere, to see whether slopes grow
        elif len(self._slopes) > 1 and not self._jumps():
            self.distance *= self._near

    def scales(self, origin: Float[np.ndarray, " dim"]) -> Scales:
        """The scales, after the last calibration. `origin` is the start."""
        length, unit, jumps = self._found()
        return Scales(origin, length * self.axes, np.asarray(unit), jumps)

    def units(self) -> Units:
        """The same by leaves, where the directions are not the axes."""
        length, unit, jumps = self._found()
        return Units(length * self.even, unit, jumps, self._seen)

    def _found(self) -> tuple[float, float, bool]:
        """The length of a natural unit, the unit of the loss, and whether the loss is a staircase."""
        jumps = self._jumps()
        # A staircase has no slope of its own: its length is that of the probes it answered to.
        length = self._at / (2.0 * self._out) if jumps else self._length()
        return length, self._slope * length, jumps

    def _length(self) -> float:
        """The distance over which a slope uses up a loss; without a loss to go by, that of a guess."""
        guess = _GUESS * max(1.0, self._size) / self._out
        return self._unit / self._slope if self._sized else guess

    def _jumps(self) -> bool:
        """Whether nobody moved near and somebody did farther out, or slopes grew as 1 / h.

        In noise that could hide the histograms, the usual kind of loss is taken for granted.
        """
        if self._noise > _HIDDEN or not self._slopes:
            return False
        # Far out, slopes fall because losses are bounded: that says nothing about stairs.
        if self._silent or len(self._slopes) < 2 or self._out != 1.0:
            return self._silent
        (far, before), (near, after) = self._slopes[:2]
        grown, closer = math.log(after / before), math.log(far / near)
        return grown / closer > 0.5 if closer != 0 else False

    def _bring_together(self, parts: Parts) -> float:
        """Units in which the slopes along each axis are alike, where they were far from that.

        Each axis is read alone, so that a column of millionths is seen beside one of millions. What no
        number of records moves keeps its own length. Returns by how much slopes become longer.
        """
        assert parts.columns is not None
        noise = self._noise / self._calibrate.shrink
        columns = parts.columns / self._calibrate.shrink
        weight = np.array([_around_heaviest(column) for column in columns])
        seen = weight >= max(_TOO_FEW, _SURE_OF_MANY * noise)
        if np.sum(seen) < 2:
            return 1.0
        sizes = np.array([_heaviest(column, noise, _WINDOW) for column in columns])
        usual = float(np.max(sizes[seen]))
        factors = np.where(seen, usual / sizes, 1.0)
        if np.max(factors) < _ALIKE:
            return 1.0
        self._axes = self._axes * factors
        share = np.clip(weight[seen], 0.0, 1.0)
        return math.sqrt(float(np.sum(share) / np.sum(share * (sizes[seen] / usual) ** 2)))

    def _even(self, sizes: Float[np.ndarray, " leaves"], seen: np.ndarray) -> None:
        """Units of the leaves in which the slopes along a coordinate are alike in all of them."""
        leaves = np.array(self._calibrate.leaves)
        if np.sum(seen) < 2:
            return
        along_one = sizes / np.sqrt(leaves)
        usual = self._slope / math.sqrt(float(np.sum(leaves[seen])))
        self.even = self.even * np.where(seen, usual / along_one, 1.0)

    def _stretch(self, parts: Parts) -> None:
        """Shorter units for coordinates with more than their share of the slopes.

        The shares are drawn towards their mean by as much as noise explains how they vary. Those below
        the mean are left alone: longer units for rare features would mostly take in noise.
        """
        if parts.shares is None:
            return
        dim = len(parts.shares)
        off = dim * (parts.shares - np.mean(parts.shares))
        noise = (1.0 + _SURE * math.sqrt(2.0 / dim)) * dim * (dim * self._noise) ** 2
        believed = max(0.0, 1.0 - noise / max(float(np.sum(off**2)), 1e-300))
        shares = 1.0 + believed * off
        stretch = 1.0 / np.sqrt(np.maximum(shares, 1.0))
        self._axes = self._axes * stretch
        left = float(np.mean(np.maximum(shares, 0.25) * stretch**2))
        self._slope *= math.sqrt(left)
        if parts.products is not None and parts.mean is not None:
            stretch = stretch / math.sqrt(left)
            self._turn(stretch[:, None] * parts.products * stretch, stretch * parts.mean, stretch)

    def _turn(
        self,
        products: Float[np.ndarray, "dim dim"],
        mean: Float[np.ndarray, " dim"],
        stretch: Float[np.ndarray, " dim"],
    ) -> None:
        """Shorter units along directions in which slopes vary most: eigenvectors of the products.

        The products of the mean slope are taken off first. Where the answer is far away all slopes
        agree; that says where to go, and nothing about how far to go across.

        Noise on entry (j, k) has a standard deviation in proportion to `stretch` j and k. The
        eigenvalues of such noise reach sqrt(2) max(stretch) |stretch| times that of a release. What is
        below that, or below a tenth of the mean 1 / d, counts as if it were there.
        """
        dim, longest = len(products), float(np.max(stretch))
        values, vectors = np.linalg.eigh(products - np.outer(mean, mean))
        edge = longest * (math.sqrt(2.0) * float(np.linalg.norm(stretch)) + _SURE * longest)
        least = max(edge * self._noise, _LEAST_EIGENVALUE / dim)
        shorter = np.sqrt(least / np.maximum(values, least))
        self._axes = self._axes @ ((vectors * shorter) @ vectors.T)
        whole = np.einsum("ji,jk,ki->i", vectors, products, vectors)
        left = float(np.sum(whole * shorter**2))
        self._slope *= math.sqrt(min(max(left, 1.0 / dim), 1.0))


def _around_heaviest(counts: Float[np.ndarray, " places"]) -> float:
    """The share of records in the three neighbouring places that hold most."""
    return float(np.max(np.convolve(counts, np.ones(3), "same")))


def _heaviest(counts: Float[np.ndarray, " places"], noise: float, window: int) -> float:
    """The size around which most records are: the middle of the heaviest three places.

    Three places are a factor of 8: wide enough for the bulk, so that the largest of all noises does
    not look like it. The mean of `window` places around it weighs them by what they hold.
    """
    away = np.abs(np.arange(len(counts)) + FIRST)
    weight = np.convolve(counts, np.ones(3), "same") - _FARFETCHED * noise * away
    middle, beside = int(np.argmax(weight)), window // 2
    places = np.arange(max(0, middle - beside), min(len(counts), middle + beside + 1))
    weights = np.maximum(counts[places], 0.0) + 1e-12
    return 2.0 ** (float(np.average(places, weights=weights)) + FIRST)
