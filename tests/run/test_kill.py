"""Kill -9 at random moments, each driver: the same bits as if nothing had happened.

And over all lives of a run: no release ever comes out another way, no answer that a `tell` returned
from is lost, and the ledger never reads less than was released, nor more than was planned.
"""

import jax
import pytest

from driver_runs import DRIVERS, run
from kill_helpers import Nursery, digest_of_result, kill_and_resume


@pytest.fixture(scope="module")
def expected():
    with jax.enable_x64(True):
        return {driver: digest_of_result(run(driver)) for driver in DRIVERS}


@pytest.fixture(scope="module")
def nursery(tmp_path_factory):
    with Nursery(tmp_path_factory.mktemp("cache")) as made:
        yield made


@pytest.mark.parametrize(("driver", "kills"), [("compiled", 1), ("ask", 2)])
def test_kill_9_at_random_moments(nursery, tmp_path, expected, driver, kills):
    assert kill_and_resume(nursery, tmp_path, driver, expected[driver], kills, seed=1) >= 1


@pytest.mark.slow
def test_kill_9_at_200_random_moments(nursery, tmp_path, expected):
    kills = {"compiled": 60, "host": 70, "ask": 70}
    hits = {
        driver: kill_and_resume(nursery, tmp_path, driver, expected[driver], number, seed=2)
        for driver, number in kills.items()
    }
    print(f"{sum(kills.values())} kills, of a run under way: {hits}")
    assert sum(kills.values()) == 200
    assert all(hits[driver] >= kills[driver] // 2 for driver in kills)
