"""What lies in a run directory beside the secret state is the same for every data set."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import blindstep as bs
from blindstep import host
from blindstep.cli import app
from blindstep.drivers import fingerprints
from blindstep.drivers.storage import SavingInterval
from blindstep.errors import InvalidArgument
from blindstep.trusted.ledger import data_id
from blindstep.trusted.refusals import CheckpointMismatch
from losses import capped_distance, capped_distance_numpy
from resume_helpers import CHOICES, DATA, small_run

NEIGHBOUR = DATA.copy()
NEIGHBOUR[5] = 1e308


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs on the same data and one on a neighbour, all with fresh keys."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SavingInterval, "due", lambda interval: True)  # saves go by the clock else
        for name, data in (("one", DATA), ("two", DATA), ("six", NEIGHBOUR)):
            small_run(folder / name, data=data, seed=None)
    return folder


def public_files(run):
    return {p.name: p.read_text() for p in run.iterdir() if not p.name.startswith("state-")}


def test_no_public_file_lets_a_guess_of_the_data_be_checked(runs):
    """The fingerprint of the data, which anybody can compute for a guess, is nowhere to be read."""
    guess = fingerprints.of_data(DATA)
    names = set()
    for run in ("one", "two"):
        shown = CliRunner().invoke(app, ["ledger", "show", str(runs / run), "--json"]).stdout
        assert guess not in "".join(public_files(runs / run).values()) + shown
        names.add(json.loads(shown)["runs"][0]["data"])
    assert len(names) == 2  # the same data have another name in every run


def test_files_have_the_same_names_and_sizes_for_every_data_set(runs):
    def seen(run):
        return {(p.name, p.stat().st_size) for p in (runs / run).iterdir()}

    assert seen("one") == seen("six")


def test_a_name_of_data_depends_on_key_and_data():
    key, other = np.arange(8, dtype=np.uint32), np.arange(1, 9, dtype=np.uint32)
    names = {data_id(k, f) for k in (key, other) for f in ("a" * 64, "b" * 64)}
    assert len(names) == 4
    assert data_id(key, "a" * 64) == data_id(key.copy(), "a" * 64)
    with pytest.raises(InvalidArgument, match="8 words"):
        data_id(key[:4], "a" * 64)


def test_neither_the_host_driver_nor_a_certificate_writes_a_hash_of_the_data(tmp_path):
    """Every way to a ledger: what a guess could be checked against is nowhere in it."""
    guess = fingerprints.of_data(DATA)
    host.minimize(capped_distance_numpy, np.zeros(2), DATA, checkpoint=tmp_path / "run", **CHOICES)
    public = "".join(public_files(tmp_path / "run").values())
    path = tmp_path / "certificates.jsonl"
    bs.certificate(
        capped_distance, np.zeros(2), DATA, radius=0.5, privacy=bs.Privacy(rho=1.0), ledger=path,
        bounds=bs.Lipschitz(1.0),
    )  # fmt: skip
    assert guess not in public + path.read_text()
    with pytest.raises(CheckpointMismatch, match="another data"):
        host.minimize(
            capped_distance_numpy, np.zeros(2), NEIGHBOUR, checkpoint=tmp_path / "run", **CHOICES
        )
