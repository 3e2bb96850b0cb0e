"""What a ledger says: each run at its own delta, the totals at one."""

import pytest
from rich.console import Console

import blindstep as bs
from blindstep.insight.tables import read_spending, spending_numbers, spending_table
from blindstep.ledger.account import RunIdentity
from blindstep.ledger.ledger import Ledger
from blindstep.private.accounting import epsilon


@pytest.fixture
def path(tmp_path):
    """A ledger with a run at delta 1e-6 and one at delta 1e-5, each of mu 0.5."""
    with Ledger.open(tmp_path / "l.jsonl", cohort="[red]clinic", budget=1.0) as ledger:
        for name, delta in (("a", 1e-6), ("b", 1e-5)):
            identity = RunIdentity(name, "plan", "data", f"key {name}", 0.5, 3, 1, delta)
            ledger.register(identity)
            ledger.begin(name, 0, 3)
    return tmp_path / "l.jsonl"


def test_each_run_is_quoted_at_its_own_delta(path):
    numbers = spending_numbers(read_spending(path))
    assert [run["delta"] for run in numbers["runs"]] == [1e-6, 1e-5]
    assert [run["epsilon"] for run in numbers["runs"]] == [epsilon(0.5, 1e-6), epsilon(0.5, 1e-5)]
    assert numbers["cohort"] == "[red]clinic"
    # The totals at the largest delta, or at the one that is asked for.
    assert numbers["delta"] == 1e-5
    assert numbers["epsilon"] == epsilon(numbers["mu"], 1e-5)
    asked = spending_numbers(read_spending(path), 1e-9)
    assert asked["epsilon"] == epsilon(numbers["mu"], 1e-9)
    assert asked["runs"] == numbers["runs"]


def test_the_table_says_at_which_delta(path, tmp_path):
    console = Console(width=120)
    with console.capture() as shown:
        console.print(spending_table(read_spending(path)))
    text = shown.get()
    assert "[red]clinic" in text
    assert "own delta; total, budget and remaining are at delta 1e-05" in " ".join(text.split())
    with Ledger.open(tmp_path / "empty", cohort="x"):
        pass
    empty = spending_numbers(read_spending(tmp_path / "empty"))
    assert (empty["mu"], empty["remaining_mu"]) == (0.0, None)
    with pytest.raises(bs.errors.LedgerError):
        read_spending(tmp_path)
