"""Damaged files, full disks and shared budgets: refused before anything is evaluated."""

import errno
import json
import math
import resource
import shutil

import pytest
from typer.testing import CliRunner

import blindstep as bs
from blindstep.cli import app
from blindstep.trusted.ledger import read_ledger
from blindstep.trusted.refusals import (
    BudgetExceeded,
    CheckpointDamaged,
    CheckpointUnwritable,
    LedgerError,
    LedgerMismatch,
    LedgerTruncated,
    LedgerUnwritable,
    NoiseReused,
    StorageError,
)
from resume_helpers import DATA, DRIVERS, HORIZON, cut_after, evaluations, same, small_run
from storage_helpers import failing, flip


@pytest.fixture(scope="module", params=["compiled"])
def driver(request):
    return request.param


each_driver = pytest.mark.parametrize("driver", DRIVERS, indirect=True, scope="module")


@pytest.fixture(scope="module")
def half(tmp_path_factory, driver):
    """A run directory after five epochs, all saved, and the one of another run."""
    directory = tmp_path_factory.mktemp("half")
    with pytest.MonkeyPatch.context() as patch:
        cut_after(patch, directory / "run", 5, share=1, driver=driver)
        cut_after(patch, directory / "other", 5, share=1, driver=driver, seed=8)
    return directory


@pytest.fixture
def run(half, tmp_path):
    return shutil.copytree(half / "run", tmp_path / "run")


def current_state(directory):
    return json.loads((directory / "checkpoint.json").read_bytes())["state"]


def files_in_use(directory):
    return ["ledger.jsonl", "checkpoint.json", "plan.json", current_state(directory)]


def refused(run, monkeypatch, file, error=StorageError, driver="compiled"):
    """Resuming is refused, with the file's name and a remedy; nothing is evaluated or changed."""
    evaluated = evaluations(monkeypatch)
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    with pytest.raises(error) as refusal:
        small_run(run, driver=driver)
    assert not evaluated
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before
    message = str(refusal.value)
    assert str(run / file) in message
    assert any(
        word in message.lower()
        for word in ("restore", "mv ", "delete it", "resume with", "put the")
    )
    return message


@each_driver
@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "swap"])
def test_a_damaged_file_is_refused_by_name(run, half, monkeypatch, driver, which, damage):
    file = files_in_use(run)[which]
    path = run / file
    content = path.read_bytes()
    if damage == "cut":
        # Of the ledger, a cut last line is what a crash leaves; whole lines that are gone are not.
        lines = content.splitlines(keepends=True)
        path.write_bytes(b"".join(lines[:-2]) if which == 0 else content[: len(content) // 2])
    elif damage == "flip":
        path.write_bytes(flip(content, 8 * (len(content) // 2) + 1))
    elif damage == "empty":
        path.write_bytes(b"")
    elif file == "plan.json":
        path.write_text(bs.plan(records=96, dim=2, privacy=bs.Privacy(rho=2.0), radius=0.1,
                                lipschitz=1.0, horizon=4).to_json())  # fmt: skip
    else:
        name = current_state(half / "other") if which == 3 else file
        shutil.copyfile(half / "other" / name, path)
        if file == "checkpoint.json":
            file = current_state(run)  # whole in itself, but its state is not there
    refused(run, monkeypatch, file, driver=driver)


@each_driver
def test_nothing_good_is_lost(run, monkeypatch, driver):
    """The way back that the message names works, with the same bits as ever."""
    whole = small_run(driver=driver)
    state = run / current_state(run)
    state.write_bytes(flip(state.read_bytes(), 999))
    message = refused(run, monkeypatch, state.name, CheckpointDamaged, driver)
    _, source, target = message[message.index("mv ") :].split()
    shutil.move(source, target)
    assert same(small_run(run, driver=driver), whole)
    (run / "plan.json").write_text("{")
    refused(run, monkeypatch, "plan.json", CheckpointDamaged, driver)
    (run / "plan.json").unlink()
    assert same(small_run(run, driver=driver), whole)


def test_a_torn_last_line_of_the_ledger_is_no_damage(run):
    path = run / "ledger.jsonl"
    head = json.loads(path.read_bytes().splitlines()[-1])
    with path.open("ab") as file:
        file.write(f'{{"n":{head["n"] + 1},"prev":"{head["sha256"]}","at"'.encode())
    assert same(small_run(run), small_run())
    assert (run / "ledger.jsonl.torn-1").exists()


def test_an_older_copy_of_the_ledger_is_refused(half, tmp_path, monkeypatch):
    run = shutil.copytree(half / "run", tmp_path / "run")
    old = (run / "ledger.jsonl").read_bytes()
    cut_after(monkeypatch, run, 3, share=1)
    (run / "ledger.jsonl").write_bytes(old)
    refused(run, monkeypatch, "ledger.jsonl", LedgerTruncated)


def test_an_older_checkpoint_is_replayed_and_forgets_nothing(half, tmp_path, monkeypatch):
    run = shutil.copytree(half / "run", tmp_path / "run")
    cut_after(monkeypatch, run, 6, share=1)
    spent = read_ledger(run / "ledger.jsonl").spent()
    for path in (half / "run").iterdir():
        if path.name.startswith(("checkpoint", "state")):
            shutil.copyfile(path, run / path.name)
    cut_after(monkeypatch, run, 1, share=0)
    account = read_ledger(run / "ledger.jsonl")
    assert account.spent() == spent
    (attempt,) = (a for r in account.runs.values() for a in r.attempts)
    assert (attempt.stop, attempt.replayed) == (11 * HORIZON, HORIZON)
    assert same(small_run(run), small_run())


@each_driver
@pytest.mark.parametrize("plan_too", [False, True])
def test_a_lost_checkpoint_does_not_start_the_run_again(run, monkeypatch, driver, plan_too):
    for path in run.iterdir():
        if path.name.startswith(("checkpoint", "state")) or (plan_too and path.name == "plan.json"):
            path.unlink()
    file = "checkpoint.json" if plan_too else "plan.json"
    refused(run, monkeypatch, file, CheckpointDamaged, driver)


@each_driver
def test_a_lost_ledger_is_refused(run, monkeypatch, driver):
    (run / "ledger.jsonl").unlink()
    evaluated = evaluations(monkeypatch)
    with pytest.raises(LedgerTruncated, match=r"ledger\.jsonl holds 0 entries"):
        small_run(run, driver=driver)
    assert not evaluated


@each_driver
@pytest.mark.parametrize("limit", [0, 150, 900, 3000, 5000])
def test_a_full_disk_at_the_start_stops_everything(tmp_path, half, monkeypatch, driver, limit):
    """The kernel's own limit on file size, met by the ledger, the state, or the checkpoint."""
    evaluated = evaluations(monkeypatch)
    sizes = [path.stat().st_size for path in (half / "run").iterdir()]
    assert max(sizes) > 5000  # so that the limit is met
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(StorageError, match="File too large"):
            small_run(tmp_path / "run", driver=driver)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    ledger = tmp_path / "run" / "ledger.jsonl"
    begun = 0
    if ledger.exists() and ledger.stat().st_size > 1000:
        begun = sum(r.next_step for r in read_ledger(ledger).runs.values())
    assert evaluated.count("run_epoch") * HORIZON + evaluated.count("release") <= begun
    assert evaluated == [] or limit == 5000
    if not evaluated and driver == "compiled":
        assert same(small_run(tmp_path / "run"), small_run())


def test_a_disk_that_fills_up_stops_the_next_epoch(run, monkeypatch):
    evaluated = evaluations(monkeypatch)
    size = (run / "ledger.jsonl").stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with monkeypatch.context() as patch:
        patch.setattr("blindstep.drivers.storage.SavingInterval.due", lambda self: False)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 700, hard))
        try:
            with pytest.raises(LedgerUnwritable, match="nothing more was released"):
                small_run(run)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    (account,) = read_ledger(run / "ledger.jsonl").runs.values()
    assert 1 <= len(evaluated) == account.next_step // HORIZON - 5
    assert same(small_run(run), small_run())


@each_driver
@pytest.mark.parametrize("call", ["mkdir", "open", "write", "fsync", "replace"])
@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_read_only_directory_stops_everything(tmp_path, monkeypatch, driver, call, after):
    evaluated = evaluations(monkeypatch)
    deep = tmp_path / "a" / "b" / "c"
    refusal = pytest.raises((CheckpointUnwritable, LedgerUnwritable), match="Read-only")
    with failing(monkeypatch, call, errno.EROFS, after), refusal:
        small_run(deep, driver=driver)
    assert not evaluated
    if driver == "compiled":
        assert same(small_run(deep), small_run())


def test_places_where_no_run_can_be(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for place in (tmp_path / "file", tmp_path / "file" / "run", "/proc/run"):
        with pytest.raises(CheckpointUnwritable, match="give one that can be written"):
            small_run(place)


def test_runs_on_the_same_people_compose_and_the_third_is_refused(tmp_path, monkeypatch):
    ledger, budget = tmp_path / "people.jsonl", bs.Privacy(rho=1.5)
    evaluated = evaluations(monkeypatch)
    small_run(tmp_path / "one", ledger=ledger, budget=budget, seed=1)
    # The same people, other columns: who names the ledger says so. No run directory this time.
    small_run(ledger=ledger, data=DATA * 2, seed=2)
    assert read_ledger(ledger).spent() == pytest.approx(math.sqrt(2))
    assert read_ledger(ledger).remaining() == pytest.approx(0.5)
    done, before = len(evaluated), ledger.read_bytes()
    with pytest.raises(BudgetExceeded, match=r"only 0\.5 is left .* nothing was released"):
        small_run(tmp_path / "three", ledger=ledger, seed=3)
    with pytest.raises(LedgerMismatch, match="never raised"):
        small_run(tmp_path / "three", ledger=ledger, budget=bs.Privacy(rho=9.0), seed=3)
    with pytest.raises(NoiseReused):
        small_run(tmp_path / "three", ledger=ledger, seed=1, privacy=bs.Privacy(rho=0.4))
    assert len(evaluated) == done
    assert ledger.read_bytes() == before
    small_run(tmp_path / "three", ledger=ledger, seed=3, privacy=bs.Privacy(rho=0.4))
    assert read_ledger(ledger).spent() == pytest.approx(math.sqrt(2.16))


def test_a_budget_of_the_run_itself(tmp_path):
    with pytest.raises(BudgetExceeded):
        small_run(tmp_path / "run", budget=bs.Privacy(rho=0.9))
    with pytest.raises(bs.InvalidArgument, match="give checkpoint or ledger"):
        small_run(budget=bs.Privacy(rho=2.0))


def test_a_run_resumed_with_another_ledger_is_refused(half, tmp_path):
    run = shutil.copytree(half / "run", tmp_path / "run")
    with pytest.raises(LedgerError):
        small_run(run, ledger=tmp_path / "fresh.jsonl")
    with pytest.raises(LedgerMismatch, match="another ledger"):
        small_run(run, ledger=half / "other" / "ledger.jsonl")


def test_the_command_shows_runs_total_and_rest(tmp_path):
    ledger = tmp_path / "people.jsonl"
    small_run(tmp_path / "clinic", ledger=ledger, budget=bs.Privacy(rho=2.0), seed=1)
    small_run(ledger=ledger, seed=2)
    show = CliRunner().invoke
    numbers = json.loads(show(app, ["ledger", "show", str(ledger), "--json"]).stdout)
    assert [run["steps_begun"] for run in numbers["runs"]] == [64, 64]
    assert numbers["mu"] == pytest.approx(math.sqrt(2))
    assert numbers["remaining_mu"] == pytest.approx(math.sqrt(2))
    assert numbers["epsilon"] == pytest.approx(bs.Privacy(rho=math.sqrt(2)).epsilon)
    table = show(app, ["ledger", "show", str(ledger)]).stdout
    for words in ("clinic", "total", "remaining", "1.41421", "4.37718", "64"):
        assert words in table
    small_run(tmp_path / "own")
    alone = json.loads(show(app, ["ledger", "show", str(tmp_path / "own"), "--json"]).stdout)
    assert alone["remaining_mu"] is None
    ledger.write_bytes(flip(ledger.read_bytes(), 4000))
    out = show(app, ["ledger", "show", str(ledger)])
    assert out.exit_code == 2
    assert "Restore it from a copy" in out.stderr
