"""A run over two processes (`jax.distributed`) with a ledger, which process 0 keeps.

Each process works in a folder of its own, which stands for a host. Paths are relative, so what another
process than 0 wrote would be found in its folder.
"""

import random
import re

import jax
import pytest

from blindstep.ledger.ledger import Ledger
from company_child import DATA, Pair, hear, minimize, moments, refused
from kill_helpers import Watched, digest_of_result


@pytest.fixture(scope="module")
def expected():
    """What one process makes of it, undisturbed."""
    with jax.enable_x64(True):
        return digest_of_result(minimize(DATA))


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    with Pair(tmp_path_factory.mktemp("cache")) as made:
        yield made


def test_either_is_killed_and_both_go_on_with_the_bits_of_one_process(pair, tmp_path, expected):
    """And what one of them is refused, both are."""
    run, chance = Watched(tmp_path / "0" / "run"), random.Random(1)
    for rank in (1, 0):
        hear(run, pair.live(tmp_path, "run", kill=rank, after=chance.randrange(1, 8)))
        assert run.result is None
    with Ledger.open(tmp_path / "0" / "held.jsonl", cohort="held"):
        refusals = ("budget", "params", "path", "data", "held")
        said = pair.live(tmp_path, "run", *refusals)
    hear(run, said)
    assert run.result == expected
    assert not list((tmp_path / "1").iterdir())
    texts = refused(said[0])
    assert texts == refused(said[1])
    remedies = [
        "budget BudgetExceeded: .*/poor/ledger.jsonl: run .* asks for mu = 1, but of the budget 0.5",
        "params InvalidArgument: process 1 does not have the params of process 0",
        "path InvalidArgument: process 1 does not have the checkpoint, ledger or budget of process 0",
        "data InvalidArgument: process 1 does not have the data of process 0",
        "held LedgerBusy: ",
    ]
    assert len(texts) == len(remedies)
    for text, remedy in zip(texts, remedies, strict=True):
        assert re.match(remedy, text), text


def test_without_process_0_the_other_ends_and_says_why(pair, tmp_path):
    """JAX ends it as soon as process 0 is gone, mostly before Python can: either message will do."""
    said = "\n".join(pair.live(tmp_path, "killed")[1])
    assert "another task died" in said or "does not reach process 0 any more" in said


@pytest.mark.slow
@pytest.mark.parametrize("task", ["run", "whole"])
def test_kill_9_at_random_moments_of_two_processes(pair, tmp_path, expected, task):
    """Of data that are spread over both, and of data that each of them holds whole."""
    hits, run, number = 0, Watched(tmp_path / "0" / "0" / "run"), 0
    for rank, after, patience in moments(kills=20, seed=len(task)):
        lives = pair.live(tmp_path / str(number), task, kill=rank, after=after, patience=patience)
        hear(run, lives)
        hits += run.result is None
        if run.result is not None:
            assert run.result == expected
            number += 1
            run = Watched(tmp_path / str(number) / "0" / "run")
    hear(run, pair.live(tmp_path / str(number), task))
    assert run.result == expected
    print(f"20 kills, {hits} of a run under way")
    assert hits >= 10
