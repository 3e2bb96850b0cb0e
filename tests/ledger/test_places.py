"""The ledger of a data file: one for all runs on its people, however the file is reached."""

import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from blindstep.errors import LedgerUnreadable, LedgerUnwritable
from blindstep.ledger import data_ledger
from blindstep.ledger.ledger import read_ledger


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv(data_ledger.HOME, str(tmp_path / "home"))
    file = tmp_path / "people.csv"
    file.write_text("age\n40\n41\n")
    return file


def test_a_ledger_is_begun_once_and_named_after_the_file(data):
    assert data_ledger.find(data) is None
    assert not Path(data_ledger.home()).exists()  # looking writes nothing
    kept = data_ledger.keep(data)
    assert data_ledger.keep(data) == kept == data_ledger.find(data)
    assert [kept] == data_ledger.all_kept()
    assert Path(kept.ledger).name.startswith("people-")
    assert read_ledger(kept.ledger).cohort == "people"


def test_another_name_a_link_or_a_copy_is_the_same_people(data, tmp_path, monkeypatch):
    ledger = data_ledger.keep(data).ledger
    (tmp_path / "link.csv").symlink_to(data)
    (tmp_path / "folder").mkdir()
    copy = tmp_path / "folder" / "copy.csv"
    copy.write_bytes(data.read_bytes())
    monkeypatch.chdir(tmp_path)
    for other in ("link.csv", "folder/../people.csv", copy):
        assert data_ledger.keep(other).ledger == ledger
    renamed = data.rename(tmp_path / "renamed.csv")
    assert data_ledger.keep(renamed).ledger == ledger
    # After a correction it is the same file, under each name that it had.
    copy.write_text("age\n40\n42\n")
    kept = data_ledger.keep(copy)
    assert (kept.ledger, len(kept.contents)) == (ledger, 2)


def test_other_people_have_another_ledger_and_content_decides(data, tmp_path):
    other = tmp_path / "others.csv"
    other.write_text("age\n50\n")
    one, two = data_ledger.keep(data), data_ledger.keep(other)
    assert one.ledger != two.ledger
    # A file that takes the place of another one: its records are counted where they were.
    data.write_bytes(other.read_bytes())
    assert data_ledger.keep(data).ledger == two.ledger


def test_two_that_begin_at_once_agree(data):
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: data_ledger.keep(data).ledger, range(16)))
    assert len(set(found)) == 1


def test_hashes_of_the_data_are_for_their_owner_and_not_in_the_ledger(data):
    kept = data_ledger.keep(data)
    for path in Path(data_ledger.home()).iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE(os.stat(data_ledger.home()).st_mode) == 0o700
    public = Path(kept.ledger).read_text()
    assert kept.contents[0] not in public
    assert str(data) not in public


def test_where_they_are_kept(monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    monkeypatch.setenv(data_ledger.HOME, "/mine")
    assert data_ledger.home() == "/mine/ledgers"
    monkeypatch.delenv(data_ledger.HOME)
    assert data_ledger.home() == "/data/blindstep/ledgers"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", "/home/ada")
    assert data_ledger.home() == "/home/ada/.local/share/blindstep/ledgers"


def test_refusals_name_the_remedy(data, tmp_path, monkeypatch):
    kept = data_ledger.keep(data)
    description = Path(kept.ledger.removesuffix(".jsonl") + ".data.json")
    description.write_text(json.dumps({"contents": []}))
    with pytest.raises(LedgerUnreadable, match="restore it from a copy, or give --ledger"):
        data_ledger.keep(data)
    with pytest.raises(LedgerUnreadable, match=r"nobody.csv cannot be read \(No such file"):
        data_ledger.find(tmp_path / "nobody.csv")
    (tmp_path / "in the way").write_text("")
    monkeypatch.setenv(data_ledger.HOME, str(tmp_path / "in the way"))
    with pytest.raises(LedgerUnwritable, match="give --ledger PATH, or set BLINDSTEP_HOME"):
        data_ledger.keep(data)
