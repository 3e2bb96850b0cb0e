"""The ledger's file, and every way to damage it: refused, or nothing is lost."""

import json
import random
import re

import pytest

from blindstep.errors import LedgerDamaged, LedgerError, LedgerMismatch, LedgerTruncated
from blindstep.ledger.account import SCHEMA, Account
from blindstep.ledger.files import seal, unseal
from blindstep.ledger.journal import Head, scan
from blindstep.ledger.ledger import cohort_of, read_ledger
from storage_helpers import flip, identity, open_ledger, overwrite, write_some


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


def refused_or_same(path, head, content, spent):
    """Open a ledger that was tampered with: a clear refusal, or nothing lost."""
    changed, refusal = path.read_bytes(), None
    try:
        with open_ledger(path, head=head) as ledger:
            assert ledger.account.spent() == spent
    except LedgerError as error:
        refusal = error
    if refusal is None:
        assert path.read_bytes() == content
        return False
    assert str(path) in str(refusal)
    assert path.read_bytes() == changed
    return True


def test_lines_are_a_chain_of_sealed_json(path):
    content, head, _ = write_some(path, budget=9.0)
    previous = "0" * 64
    lines = content.splitlines()
    assert len(lines) == head.length == 6
    for number, line in enumerate(lines):
        entry = json.loads(line)
        assert (entry["n"], entry["prev"]) == (number, previous)
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", entry["at"])  # the day, no time of day
        previous = entry["sha256"]
    assert previous == head.sha256
    assert json.loads(lines[0])["schema"] == SCHEMA
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_a_flipped_bit_is_refused(path, every):
    content, head, spent = write_some(path)
    for bit in range(0, 8 * len(content), every):
        changed = flip(content, bit)
        with pytest.raises(LedgerDamaged, match=str(path)):
            scan(str(path), changed, Account().apply)
        if bit % 61 == 0:  # some also through a file
            overwrite(path, changed)
            assert refused_or_same(path, head if bit % 3 else None, content, spent), bit


@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.slow)])
def test_a_cut_is_refused_or_loses_nothing_the_checkpoint_saw(path, every):
    content, head, spent = write_some(path)
    whole = len(content)
    for size in (*range(0, whole - 2, every), whole - 2, whole - 1):
        overwrite(path, content[:size])
        assert refused_or_same(path, head, content, spent) == (size < whole - 1)
    path.unlink()
    with pytest.raises(LedgerTruncated, match=rf"{path} holds 0 entries.*seen 5"):
        open_ledger(path, head=head)
    assert not path.exists()


@pytest.mark.parametrize("cases", [150, pytest.param(2_000, marks=pytest.mark.slow)])
def test_lines_moved_doubled_dropped_or_mixed_are_refused(path, tmp_path, cases):
    content, head, spent = write_some(path)
    other, *_ = write_some(tmp_path / "other.jsonl")
    lines, foreign = content.splitlines(True), other.splitlines(True)
    rng = random.Random(5)
    for _ in range(cases):
        changed = list(lines)
        for _ in range(rng.randrange(1, 3)):
            i, j = rng.randrange(len(changed)), rng.randrange(len(changed))
            match rng.randrange(4):
                case 0:
                    changed[i], changed[j] = changed[j], changed[i]
                case 1:
                    changed.insert(i, changed[j])
                case 2 if i < len(changed) - 1:
                    del changed[i]
                case _:
                    changed[i] = foreign[min(i, len(foreign) - 1)]
        overwrite(path, b"".join(changed))
        if changed != lines:
            assert refused_or_same(path, head, content, spent)


def test_a_file_that_is_no_ledger_is_left_alone(path):
    for content in (b"name,age\nA,3\n", b"no newline", b"{}", b"[" * 100_000, b"\xff\xfe\n"):
        path.write_bytes(content)
        with pytest.raises(LedgerDamaged, match="line 1"):
            open_ledger(path)
        assert path.read_bytes() == content
        with pytest.raises(LedgerDamaged, match="line 1"):
            read_ledger(path)
    path.write_bytes(b"")
    with pytest.raises(LedgerMismatch, match="empty"):
        read_ledger(path)
    assert cohort_of(path) is None  # begun, and never written


def reseal(lines, number, **changes):
    """Change an entry and mend the whole chain after it, as only a program would."""
    out, previous = [], "0" * 64
    for n, line in enumerate(lines):
        body, _ = unseal(line)
        sealed = seal({**body, "prev": previous, **(changes if n == number else {})})
        previous = unseal(sealed)[1]
        out.append(sealed + b"\n")
    return b"".join(out)


@pytest.mark.parametrize(
    ("number", "changes", "says"),
    [
        (0, {"schema": SCHEMA + 1}, "use the version that wrote it"),
        (0, {"id": 5}, "no text"),
        (1, {"kind": "ledger"}, "one first entry"),
        (1, {"kind": "gift"}, "no kind of entry"),
        (1, {"passes": 0}, "passes"),
        (1, {"delta": 2}, "delta"),
        (1, {"run": ""}, "run"),
        (2, {"charges": []}, "does not charge"),
        (2, {"charges": [[0, 0.1]]}, "not that of its run"),
        (2, {"charges": [[0, -0.5]]}, "not that of its run"),
        (2, {"charges": 3}, "iterable"),
        (2, {"run": "second"}, "second"),
        (2, {"run": ["first"]}, "unhashable"),
        (2, {"attempt": 1}, "index"),
        (3, {"first": 2}, "do not follow"),
        (3, {"count": 100}, "do not follow"),
        (3, {"charges": [[0, 0.5]]}, "not that of its run"),
    ],
)
def test_entries_that_make_no_sense_are_refused_though_their_hashes_are_right(
    path, number, changes, says
):
    content, head, _ = write_some(path)
    path.write_bytes(reseal(content.splitlines(), number, **changes))
    with pytest.raises(LedgerDamaged, match=rf"line {number + 1}: .*{says}"):
        open_ledger(path)
    with pytest.raises(LedgerError):
        open_ledger(path, head=head)


def test_the_checkpoints_head_tells_a_swap_from_a_roll_back(path, tmp_path):
    _, head, _ = write_some(path)
    write_some(tmp_path / "other.jsonl")
    with pytest.raises(LedgerMismatch, match="another ledger"):
        open_ledger(tmp_path / "other.jsonl", head=head)
    lines = path.read_bytes().splitlines(True)
    path.write_bytes(b"".join(lines[:-1]))
    with open_ledger(path) as ledger:  # rolled back by one entry, then written on
        ledger.register(identity("second"))
        ledger.begin("second", 0)
    with pytest.raises(LedgerMismatch, match="rolled back"):
        open_ledger(path, head=head)
    with pytest.raises(LedgerTruncated):
        open_ledger(path, head=Head(head.origin, 99, head.sha256))
