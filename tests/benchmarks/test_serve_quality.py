"""Simulated studies: the table's short way and the service's own agree."""

import numpy as np
import pytest
from benchmarks import serve_forecast, serve_quality


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ranking", "bowl"])
def test_what_the_table_is_made_of_is_what_studies_do(kind):
    short = [serve_forecast.closed(kind, 6, 10_000, 1.0, seed) for seed in range(8)]
    real = [serve_quality.closed(kind, 6, 10_000, 1.0, seed, 0.0) for seed in range(8)]
    assert np.mean(short) == pytest.approx(np.mean(real), abs=0.12)
