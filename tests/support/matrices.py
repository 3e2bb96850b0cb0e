"""The matrices C of all mechanisms, from their definitions alone."""

import math
from fractions import Fraction

import numpy as np

import reference
from blindstep.private.mechanisms import MECHANISMS, Mechanism

# The mechanisms of this package: a test that defines one of its own adds it to `MECHANISMS`.
OURS = {name: each for name, each in MECHANISMS.items() if each.__module__ == Mechanism.__module__}


def exact_coefficients(mechanism):
    """Of T, as fractions: the square root's by its formula, BLT's from the floats in use."""
    if mechanism.name == "sqrt":
        return [Fraction(math.comb(2 * k, k), 4**k) for k in range(mechanism.steps)]
    floats = zip(mechanism.decays, mechanism.scales, strict=True)
    pairs = [(Fraction(theta), Fraction(omega)) for theta, omega in floats]
    return [Fraction(1)] + [sum(o * t**k for t, o in pairs) for k in range(mechanism.steps - 1)]


def dense(name, steps):
    """C from its definition alone: the paper's NODE for the tree, T over its true column norms."""
    if name == "independent":
        return np.eye(steps)
    if name == "tree":
        return reference.tree_matrices(steps)[1]
    coefficients = np.asarray([float(c) for c in exact_coefficients(MECHANISMS[name](steps))])
    lag = np.subtract.outer(np.arange(steps), np.arange(steps))
    toeplitz = np.where(lag >= 0, coefficients[np.maximum(lag, 0)], 0.0)
    return toeplitz / np.linalg.norm(toeplitz, axis=0)
