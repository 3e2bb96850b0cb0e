"""The notebooks run to their ends and are kept without outputs; logs are as others read them."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import blindstep as bs
from driver_runs import DATA
from losses import capped_distance

FOLDER = Path(__file__).parents[2] / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
# Ask and tell moves when its answers come, and estimators are as quiet as those of scikit-learn.
NO_BARS = ("2_votes", "4_people_in_a_table")
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def test_there_are_six():
    assert [path.stem[0] for path in NOTEBOOKS] == [*"123456"]


@each_notebook
def test_a_notebook_is_kept_without_outputs(path):
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "code":
            assert not cell["outputs"]
            assert cell["execution_count"] is None


@each_notebook
def test_a_notebook_says_first_what_it_is_about(path):
    first = json.loads(path.read_text())["cells"][0]
    assert first["cell_type"] == "markdown"
    assert first["source"][0].startswith("# ")


@pytest.mark.notebooks
@each_notebook
def test_a_notebook_runs_to_its_end(path, tmp_path):
    import nbclient
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=900, resources={"metadata": {"path": tmp_path}}
    ).execute()
    shown = [
        output["data"]["text/html"]
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if "text/html" in output.get("data", {})
    ]
    assert any("epsilon" in each for each in shown), "no result is shown"
    streams = [
        output.text
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if output.output_type == "stream" and output.name == "stderr"
    ]
    assert not [each for each in streams if "blindstep" in each and "Warning" in each]
    assert 'install "ipywidgets"' not in "".join(streams)  # what rich says
    # The progress bar is there, and full.
    bars = [re.search(r'<progress value="(\d+)" max="(\d+)">', each) for each in shown]
    full = [bar[1] == bar[2] for bar in bars if bar]
    assert all(full)
    assert full or path.stem in NO_BARS


def logged(log):
    """A short run that tells `log` its steps, which it gives."""
    steps = []
    plan = bs.plan(bs.Auto(passes=8), dim=2, records=24, privacy=bs.Privacy(epsilon=4, delta=1e-3))
    bs.minimize(capped_distance, np.zeros(2), DATA, method=plan, callbacks=[log, steps.append])
    return steps


@pytest.mark.notebooks
def test_tensorboard_reads_what_was_released(tmp_path):
    from tensorboardX import SummaryWriter
    from tensorboardX.proto.event_pb2 import Event

    writer = SummaryWriter(str(tmp_path))
    steps = logged(bs.callbacks.tensorboard(writer))
    writer.close()
    (file,) = tmp_path.iterdir()
    raw, place, found = file.read_bytes(), 0, {}
    while place < len(raw):  # length, its checksum, an event, its checksum
        size = int.from_bytes(raw[place : place + 8], "little")
        event = Event.FromString(raw[place + 12 : place + 12 + size])
        place += 12 + size + 4
        for value in event.summary.value:
            found.setdefault(value.tag, []).append(value.simple_value)
    assert found.keys() == steps[0].numbers().keys()
    np.testing.assert_allclose(found["loss"], [each.loss for each in steps], rtol=1e-6)


@pytest.mark.notebooks
def test_weights_and_biases_gets_files_and_nothing_is_sent(tmp_path, monkeypatch):
    import wandb

    monkeypatch.setenv("WANDB_SILENT", "true")
    steps = logged(bs.callbacks.wandb_files(tmp_path))
    run = wandb.run
    assert run is not None
    assert run.settings.mode == "offline"
    # The last step is written when the run is finished.
    assert run.summary["epsilon"] == steps[-2].epsilon
    run.finish()
    assert list(tmp_path.rglob("*.wandb"))
