"""What every driver promises: the same list for the compiled one, the host's and ask/tell."""

import copy
import dataclasses
import json
import pickle

import jax
import numpy as np
import pytest

import blindstep as bs
from blindstep.errors import BudgetExceeded, CheckpointMismatch, LedgerUnwritable, StorageError
from blindstep.ledger import fingerprints
from blindstep.ledger.ledger import Ledger, read_ledger
from blindstep.private.noise import LARGEST, STD
from driver_runs import (
    BUDGET,
    DATA,
    DRIVERS,
    HORIZON,
    NAIVE_PLAN,
    PLAN,
    ROUNDS,
    STEPS,
    cut_after,
    events,
    run,
    same,
)
from plans import plan_of
from storage_helpers import flip

PLANS = {
    "variance-reduced, own directions": PLAN,
    "naive, the frame of a block": NAIVE_PLAN,
    "variance-reduced, the frame of a block": plan_of(
        records=24,
        dim=2,
        **BUDGET,
        bounds=bs.Bounds(lipschitz=1.0, clip=1.0, diff_clip=0.5),
        horizon=6,
        period=3,
        first_batch=5,
        diff_batch=3,
        directions=1,
        sharing="block",
        mechanism="blt",
        rounds=2,
        passes=2,
    ),
}


@pytest.fixture(scope="module")
def whole():
    """The uninterrupted run by each driver."""
    with jax.enable_x64(True):
        return {driver: run(driver) for driver in DRIVERS}


@pytest.fixture(params=DRIVERS)
def driver(request):
    return request.param


@pytest.fixture
def place(tmp_path):
    return tmp_path / "run"


# -- the same run --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PLANS)
def test_drivers_agree_to_rounding(name):
    compiled, *others = (run(each, plan=PLANS[name]) for each in DRIVERS)
    assert np.any(compiled.means != 0)
    for other in others:
        np.testing.assert_allclose(other.means, compiled.means, rtol=0, atol=1e-12)
        for field in ("gradient_norm", "move_norm"):
            one, two = getattr(other.history, field), getattr(compiled.history, field)
            np.testing.assert_allclose(one, two, rtol=1e-10, atol=1e-12)
        assert other.random_round == compiled.random_round
        assert other.privacy == compiled.privacy
    another = run("host", plan=PLANS[name], seed=8)  # the comparison can fail
    assert np.max(np.abs(another.means - compiled.means)) > 1e-6


def test_a_result_has_its_shape_and_keeps_dtypes(driver, whole):
    result = whole[driver]
    assert result.params.shape == (2,)
    assert result.means.shape == (ROUNDS, 2)
    np.testing.assert_array_equal(result.params, result.means[-1])
    np.testing.assert_array_equal(result.random_round_mean, result.means[result.random_round])
    np.testing.assert_array_equal(np.stack(result.round_means), result.means)
    names = {field.name for field in dataclasses.fields(result.history)}
    assert names == {"gradient_norm", "move_norm", "loss", "loss_std"}
    assert result.history.loss is None  # no share of the budget was given to it
    assert result.history.gradient_norm.shape == result.history.move_norm.shape == (ROUNDS, HORIZON)
    assert np.all(result.history.move_norm <= PLAN.reach * (1 + 1e-12))
    assert result.plan is PLAN
    assert result.privacy.mu == PLAN.mu <= 1.0
    assert f"params: mean of round {ROUNDS}" in str(result)


def test_parameters_keep_their_structure_and_dtypes(driver):
    """In the user's single-precision mode, which stays as it was."""
    start = {"w": np.zeros((1, 1), np.float32), "b": (np.zeros(()),)}

    def loss(p, z):
        return abs(p["w"][0, 0] - z[0]) + abs(p["b"][0] - z[1])

    with jax.enable_x64(False):
        result = run(driver, start=start, loss=loss, plan=NAIVE_PLAN)
        assert jax.numpy.zeros(1).dtype == np.float32
    for answer in (result.params, result.random_round_mean, *result.round_means):
        assert jax.tree.structure(answer) == jax.tree.structure(start)
        assert answer["w"].shape == (1, 1)
        assert answer["w"].dtype == np.float32
        assert answer["b"][0].dtype == np.float64
    last = [result.params["b"][0], result.params["w"][0, 0]]
    np.testing.assert_allclose(result.means[-1], last, rtol=1e-6)
    assert result.means.dtype == np.float64


def test_records_that_are_not_numbers_count_zero(driver):
    """Of NaN records, what is released is the noise: as of records whose loss never changes."""
    broken, flat = (run(driver, data=np.full(DATA.shape, value)) for value in (np.nan, 1e9))
    assert same(broken, flat)
    data = DATA.copy()
    data[7] = np.nan
    result = run(driver, data=data)
    assert np.all(np.isfinite(result.means))
    assert not same(result, broken)


# -- seeds and secrets ---------------------------------------------------------------------------


def test_seeded_runs_repeat_and_say_so_unseeded_ones_do_not(driver, whole):
    assert same(run(driver), whole[driver])
    assert "NOT private against anyone who knows" in str(whole[driver].privacy)
    one, two = run(driver, seed=None), run(driver, seed=None)
    assert np.all(one.means != two.means)
    assert not one.privacy.seeded
    assert "seed" not in str(one)


def test_an_optimizer_cannot_be_copied():
    opt = bs.Optimizer(PLAN, np.zeros(2))
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(bs.errors.SecretCopied, match="start a second run instead"):
            attempt(opt)


RELEASES = 50
LINE = np.zeros((2 * RELEASES, 1))


def one_dimensional(data, driver):
    """Norms of releases at known increments: the loss is linear, and the path does not matter."""
    plan = plan_of(
        records=len(data),
        dim=1,
        **BUDGET,
        bounds=bs.Bounds(clip=1.0),
        horizon=1,
        first_batch=2,
        directions=1,
        rounds=RELEASES,
        passes=1,
        sharing="record",
    )
    result = run(driver, plan=plan, data=data, loss=lambda x, z: x[0] * z[0])
    return result.history.gradient_norm.ravel(), plan.noise_std / STD


def impossible(norms, width, increment):
    """Norms that a run with this increment cannot give, whatever its noise: they give it away."""
    steps = np.rint(norms / width)
    on_lattice = np.sqrt((steps * width) ** 2) == norms
    reached = np.minimum(*(np.abs(sign * steps - increment / width) for sign in (-1, 1))) < LARGEST
    return np.count_nonzero(~(on_lattice & reached))


def test_the_last_bits_of_a_release_give_nobody_away(driver):
    """In plain float64, from the norms of the releases alone, a tenth of all runs would."""
    for data, neighbour in ((LINE, 0.5), (LINE + 1.0, 0.0)):
        norms, width = one_dimensional(data, driver)
        assert impossible(norms, width, 1.0 - 2 * neighbour) == 0  # by its own data, of course
        assert impossible(norms, width, neighbour) == 0
    plain = np.abs(0.5 + np.random.default_rng(0).normal(size=RELEASES))
    assert impossible(plain, width, 0.5) > 0.9 * RELEASES  # the check sees what is off the lattice


# -- charged, then released ----------------------------------------------------------------------


def test_every_release_is_charged_before_it_is_made(driver, place, monkeypatch):
    seen = events(monkeypatch)
    run(driver, place)
    charged = released = 0
    for name, steps in seen:
        charged += steps if name == "begin" else 0
        released += steps if name in ("run_part", "step_from_answers") else 0
        assert released <= charged
    assert released == charged == STEPS
    account = read_ledger(place / "ledger.jsonl")
    assert account.spent() == pytest.approx(PLAN.mu)


def test_a_ledger_that_refuses_means_no_release(driver, place, monkeypatch, whole):
    seen, real, taken = events(monkeypatch), Ledger.begin, []

    def refuse(*arguments, **named):
        taken.append(1)
        if len(taken) > 2:
            raise LedgerUnwritable("the disk is full")
        real(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "begin", refuse)
        with pytest.raises(LedgerUnwritable):
            run(driver, place)
    assert [name for name, _ in seen if name in ("run_part", "step_from_answers")] == [
        "run_part" if driver == "compiled" else "step_from_answers"
    ] * 2
    assert same(run(driver, place), whole[driver])


def test_a_run_past_the_budget_is_refused_before_anything_is_evaluated(
    tmp_path, driver, monkeypatch
):
    ledger = tmp_path / "people.jsonl"
    run(driver, ledger=ledger, budget=bs.Privacy(mu=1.2), seed=1)
    seen, before = events(monkeypatch), ledger.read_bytes()
    for each in DRIVERS:  # they share the ledger
        with pytest.raises(BudgetExceeded, match="nothing was released"):
            run(each, tmp_path / each, ledger=ledger, seed=2)
    assert seen == []
    assert ledger.read_bytes() == before
    with pytest.raises(bs.errors.InvalidArgument, match="give checkpoint or ledger"):
        run(driver, budget=bs.Privacy(mu=2.0))


# -- over crashes --------------------------------------------------------------------------------


@pytest.mark.parametrize(("always", "before_saving"), [(True, True), (False, False)])
def test_a_run_cut_short_gives_the_same_bits(
    driver, place, monkeypatch, whole, always, before_saving
):
    """With every step saved, and with none saved: then all are repeated, at no charge."""
    for steps in (3, 5, 6):
        cut_after(monkeypatch, steps, driver, place, always=always, before_saving=before_saving)
    assert same(run(driver, place), whole[driver])
    account = read_ledger(place / "ledger.jsonl")
    assert len(account.runs) == 1
    assert account.spent() == pytest.approx(PLAN.mu)


def test_a_finished_run_is_returned_and_releases_nothing(driver, place, monkeypatch, whole):
    assert same(run(driver, place), whole[driver])
    files = {path.name: path.read_bytes() for path in place.iterdir()}
    seen = events(monkeypatch)
    assert same(run(driver, place, seed=None), whole[driver])
    assert seen == []
    assert {path.name: path.read_bytes() for path in place.iterdir()} == files


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"start": np.ones(2)}, "another params"),
        ({"seed": 8}, "another seed"),
        ({"plan": NAIVE_PLAN}, "plan.json is another plan"),
        ({"data": DATA * (1 + 1e-15)}, "another data"),
    ],
)
def test_what_changed_is_refused(driver, place, monkeypatch, change, says):
    cut_after(monkeypatch, 4, driver, place)
    before, seen = (place / "ledger.jsonl").read_bytes(), events(monkeypatch)
    if driver == "ask" and "data" in change:
        return  # the data of ask/tell are elsewhere
    with pytest.raises(CheckpointMismatch, match=says):
        run(driver, place, **change)
    assert seen == []
    assert (place / "ledger.jsonl").read_bytes() == before


def test_a_damaged_run_directory_is_refused_before_anything_is_evaluated(
    driver, place, monkeypatch
):
    cut_after(monkeypatch, 4, driver, place)
    seen = events(monkeypatch)
    state = json.loads((place / "checkpoint.json").read_text())["state"]
    for name in ("checkpoint.json", "ledger.jsonl", state):
        content = (place / name).read_bytes()
        (place / name).write_bytes(flip(content, 4 * len(content) + 1))
        with pytest.raises(StorageError, match=name):
            run(driver, place)
        (place / name).write_bytes(content)
    assert seen == []


def test_public_files_tell_nothing_of_the_data(driver, tmp_path, monkeypatch):
    """Whoever guesses the data can compute their fingerprint: it is nowhere to be read."""
    sizes, neighbour = [], DATA.copy()
    neighbour[5] = 1e9
    for name, data in (("one", DATA), ("six", neighbour)):
        cut_after(monkeypatch, 4, driver, tmp_path / name, data=data)
        files = {path.name: path for path in (tmp_path / name).iterdir()}
        public = "".join(p.read_text() for n, p in files.items() if not n.startswith("state-"))
        assert fingerprints.of_data(data) not in public
        sizes.append({name: path.stat().st_size for name, path in files.items()})
    assert sizes[0] == sizes[1]


def test_without_a_checkpoint_there_are_no_files(driver, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(driver)
    assert not list(tmp_path.iterdir())


# -- arguments -----------------------------------------------------------------------------------

CALLS = {
    "minimize": (bs.minimize, (lambda x, z: 0.0, np.zeros(2), DATA)),
    "Optimizer": (bs.Optimizer, (PLAN, np.zeros(2))),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_mistyped_argument_is_answered_with_the_nearest_one(name):
    function, arguments = CALLS[name]
    with pytest.raises(
        bs.errors.InvalidArgument, match=rf"^{name}\(\) .*'chekpoint'.*'checkpoint'"
    ):
        function(*arguments, chekpoint="run")
    with pytest.raises(bs.errors.InvalidArgument, match=r"'xyz': it has .*ledger"):
        function(*arguments, xyz=1)


@pytest.mark.parametrize("evaluate", [None, bs.Host()])
def test_a_plan_has_the_budget_and_a_method_needs_one(evaluate):
    given = (lambda x, z: abs(x[0] - z[0]), np.zeros(2), DATA)
    with pytest.raises(bs.errors.InvalidArgument, match="give privacy or a ready plan, not both"):
        bs.minimize(*given, bs.Privacy(mu=1.0), method=PLAN, evaluate=evaluate)
    with pytest.raises(bs.errors.InvalidArgument, match="give privacy, such as"):
        bs.minimize(*given, method=bs.Auto(), evaluate=evaluate)


def test_a_plan_for_others_is_refused(driver):
    with pytest.raises(bs.errors.InvalidArgument, match="plan again"):
        run(driver, start=np.zeros(3))
    if driver != "ask":
        with pytest.raises(
            bs.errors.InvalidArgument, match="for 24 records in dimension 2, but there are 23"
        ):
            run(driver, data=DATA[:23])
