"""Parameters as one flat vector."""

import jax
import numpy as np

from blindstep.losses.pytrees import ParameterSpace


def test_a_flat_vector_has_64_bits_wherever_it_is_made():
    """A service's last release was made outside of 64-bit mode: it warned, and lost the last digits."""
    start = {"a": np.array([0.1, 1e-9 + 1.0]), "b": np.float64(1 / 3)}
    space = ParameterSpace.of(start)
    with jax.enable_x64(False):
        flat = np.asarray(space.flatten(start))
    assert flat.dtype == np.float64
    assert flat.tolist() == [0.1, 1e-9 + 1.0, 1 / 3]
