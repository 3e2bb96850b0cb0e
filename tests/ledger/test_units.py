"""A ledger adds up mus about one unit: records, or people with all their rows, not both."""

import pytest

from blindstep.errors import InvalidArgument, LedgerMismatch
from blindstep.ledger.account import SCHEMA, Account
from blindstep.ledger.ledger import read_ledger
from storage_helpers import identity, open_ledger

PERSON = "one person (all rows of one identifier are one record, at most 8 of them used)"
FEWER = PERSON.replace("8", "2")


@pytest.mark.parametrize(("first", "second"), [("one record", PERSON), (PERSON, "one record")])
def test_a_run_about_another_unit_is_refused_by_both_names(tmp_path, first, second):
    path = tmp_path / "people.jsonl"
    with open_ledger(path) as ledger:
        assert ledger.account.unit is None
        ledger.register(identity(unit=first))
        before, names = path.read_bytes(), [unit.partition(" (")[0] for unit in (first, second)]
        for announce in (ledger.admit, ledger.register):
            with pytest.raises(LedgerMismatch) as caught:
                announce(identity("second", unit=second))
            said = "its runs protect {}, and run 'second' would protect {}: their mus do not add up"
            assert said.format(*names) in str(caught.value)
            assert "give this one another ledger" in str(caught.value)
        assert path.read_bytes() == before
        # The same unit, whatever explains it, adds up.
        ledger.register(identity("third", unit=first.replace("8", "2")))
    assert read_ledger(path).unit == names[0]
    assert read_ledger(path).runs["first"].identity.unit == first


def test_a_run_keeps_its_unit(tmp_path):
    with open_ledger(tmp_path / "people.jsonl") as ledger:
        ledger.register(identity(unit=PERSON))
        with pytest.raises(LedgerMismatch, match="was begun with another unit"):
            ledger.register(identity(unit=FEWER))
    with pytest.raises(InvalidArgument, match="unit must be a string, not empty"):
        identity(unit="")


def test_entries_of_two_units_are_no_ledger():
    account = Account()
    account.apply({"kind": "ledger", "at": "", "schema": SCHEMA, "id": "1f", "cohort": "people"})
    entry = {"kind": "run", "at": "", **vars(identity())}
    account.apply(entry)
    other = {"kind": "run", "at": "", **vars(identity("second", unit=PERSON))}
    with pytest.raises(ValueError, match="another unit than those before it"):
        account.apply(other)
    assert list(account.runs) == ["first"]
    with pytest.raises(KeyError):  # of an older version, which did not say what its mu is about
        account.apply({name: value for name, value in entry.items() if name != "unit"})
