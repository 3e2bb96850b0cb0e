"""Fixtures of the tests of runs on the disk."""

import jax
import pytest

from session_helpers import begin, go_on


@pytest.fixture(scope="session")
def whole():
    """The state at the end of the small run, never interrupted."""
    with jax.enable_x64(True):
        return go_on(begin()).state


@pytest.fixture
def run(tmp_path):
    """A run directory that is not there yet."""
    return tmp_path / "run"
