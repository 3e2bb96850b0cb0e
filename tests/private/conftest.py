"""What the tests of the gate share."""

import jax
import pytest


@pytest.fixture
def optimised():
    """Programs compiled as users compile them; the other tests compile quickly."""
    jax.clear_caches()
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)
    jax.clear_caches()
