"""Ledgers of data files are kept in a folder of the test's own, not in the user's."""

import pytest

from blindstep.ledger import data_ledger


@pytest.fixture(autouse=True)
def home(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("home")
    monkeypatch.setenv(data_ledger.HOME, str(folder))
    return folder
