"""Secret batches by every driver: the same run, bit for bit over crashes; nobody sees who is asked."""

import dataclasses
import json

import jax
import numpy as np
import pytest

import blindstep as bs
from blindstep.errors import InvalidArgument
from blindstep.ledger.ledger import read_ledger
from blindstep.private.schedule import Schedule
from driver_runs import DATA, DRIVERS, NAIVE_PLAN, answer_in_parts, cut_after, run, same

# 16 steps, in two passes of 8: three of 24 records in each, on the mean.
PLAN = dataclasses.replace(
    NAIVE_PLAN, secret=True, first_batch=3, diff_batch=3, horizon=4, rounds=4, curve=0.25
)
T, STEPS = 8, 16


@pytest.fixture(params=DRIVERS)
def driver(request):
    return request.param


@pytest.fixture(scope="module")
def whole():
    """The uninterrupted run by each driver."""
    with jax.enable_x64(True):
        return {driver: run(driver, plan=PLAN) for driver in DRIVERS}


def test_the_plan_is_secret_and_costs_what_it_says():
    schedule = PLAN.schedule
    assert (schedule.blocks_per_pass, schedule.passes, schedule.releases) == (T, 2, STEPS)
    assert 0.0 < PLAN.secrecy <= PLAN.privacy.room
    assert 0.99 < PLAN.mu <= 1.0
    open_batches = dataclasses.replace(PLAN, secret=False)
    # sqrt(8) would be ideal.
    assert 1.3 < open_batches.noise_std / PLAN.noise_std < 8**0.5
    assert bs.Plan.from_json(PLAN.to_json()).terms == PLAN.terms


def test_drivers_agree_to_rounding(whole):
    compiled, *others = whole.values()
    assert np.any(compiled.means != 0)
    for other in others:
        np.testing.assert_allclose(other.means, compiled.means, rtol=0, atol=1e-12)
        np.testing.assert_allclose(other.history.loss, compiled.history.loss, rtol=1e-9)
        assert other.privacy == compiled.privacy
        assert other.privacy.secrecy == PLAN.secrecy
    assert not same(run("host", plan=PLAN, seed=8), whole["host"])


def test_one_run_asks_others_than_the_next(monkeypatch):
    """Without a seed each run draws its own steps, and each pass anew."""
    seen, real = [], Schedule.rows

    def noted(schedule, order, release):
        rows = real(schedule, order, release)
        seen.append((release, tuple(rows)))
        return rows

    monkeypatch.setattr(Schedule, "rows", noted)
    passes = []
    for _ in range(2):
        seen.clear()
        run("host", plan=PLAN, seed=None)
        steps = [rows for _, rows in sorted(dict(seen).items())]
        passes += [steps[:T], steps[T:]]
    assert [len(each) for each in passes] == [T] * 4
    for each in passes:
        assert sorted(row for rows in each for row in rows) == list(range(24))
    assert len({tuple(each) for each in passes}) == 4


@pytest.mark.parametrize(("always", "before_saving"), [(True, True), (False, False)])
def test_a_run_cut_short_gives_the_same_bits(
    driver, tmp_path, monkeypatch, whole, always, before_saving
):
    place = tmp_path / "run"
    for steps in (3, 6, 5):
        cut_after(
            monkeypatch, steps, driver, place, plan=PLAN, always=always, before_saving=before_saving
        )
    assert same(run(driver, place, plan=PLAN), whole[driver])
    account = read_ledger(place / "ledger.jsonl")
    assert account.spent() == pytest.approx(PLAN.mu)
    assert account.secrecy() == pytest.approx(PLAN.secrecy)
    assert account.epsilon(PLAN.delta) == pytest.approx(PLAN.statement(seeded=True).epsilon)


def test_records_that_give_no_number_change_nothing_but_their_own_vector(driver, whole):
    broken = DATA.copy()
    broken[::5] = np.nan
    found = run(driver, plan=PLAN, data=broken)
    assert np.all(np.isfinite(found.means))
    assert not same(found, whole[driver])


def numbers_in(value):
    """Every number of a JSON value, and every length of a list."""
    if isinstance(value, dict):
        return [found for each in value.values() for found in numbers_in(each)]
    if isinstance(value, list):
        return [len(value), *(found for each in value for found in numbers_in(each))]
    return [value] if isinstance(value, int | float) else []


def test_public_files_progress_and_results_do_not_depend_on_who_answers(
    driver, tmp_path, capfd, caplog, monkeypatch
):
    """Two allocations: all that is shown has the same words, sizes and numbers, but for the noise."""
    told = []
    for seed in (1, 2):
        place = tmp_path / str(seed)
        cut_after(monkeypatch, STEPS // 2, driver, place, plan=PLAN, seed=seed)
        options = {} if driver == "ask" else {"progress": True}
        result = run(driver, place, plan=PLAN, seed=seed, **options)
        printed = capfd.readouterr()
        public = {
            path.name: path.read_text()
            for path in sorted(place.iterdir())
            if not path.name.startswith(("state-", "checkpoint"))
        }
        lines = [json.loads(line) for line in public["ledger.jsonl"].splitlines()]
        entries = [numbers_in({k: v for k, v in each.items() if k != "time"}) for each in lines]
        told.append((public["plan.json"], entries, printed.out, printed.err, str(result.privacy)))
    assert told[0] == told[1]
    assert caplog.text == ""
    if driver != "ask":
        assert "about 3 records" in told[0][3]


def test_a_question_shows_its_rows_to_who_asks_alone():
    with bs.Optimizer(PLAN, np.zeros(2), seed=4) as opt:
        query = opt.ask()
        assert "rows" not in repr(query)
        assert len(query) == len(query.rows) * 2
        answer_in_parts(opt)
        assert same(opt.result(), run("host", plan=PLAN, seed=4))


@pytest.mark.parametrize("sharing", ["block", "record"])
def test_a_step_that_asks_nobody_is_released_too(driver, sharing):
    """Eight records in 8 steps: some of them hold nobody."""
    made_of = dataclasses.replace(PLAN.estimate, sharing=sharing)
    sizes = {"records": 8, "first_batch": 1, "diff_batch": 1, "estimate": made_of, "curve": 0.0}
    found = run(driver, plan=dataclasses.replace(PLAN, **sizes), data=DATA[:8])
    assert found.history.gradient_norm.shape == (4, 4)
    assert np.all(found.history.gradient_norm > 0)


def test_blocks_whose_releases_share_noise_refuse_secret_batches():
    for mechanism in ("tree", "sqrt", "blt"):
        with pytest.raises(InvalidArgument, match="secret batches are for steps whose noise is"):
            dataclasses.replace(PLAN, mechanism=mechanism, period=2, curve=0.0)


def test_left_to_itself_a_run_is_secret_where_that_pays_and_public_where_it_is_told():
    sizes = {"records": 4_000, "dim": 10, "privacy": bs.Privacy(1, 1e-5)}
    hidden, shown = (bs.plan(bs.Auto(secret=secret), **sizes) for secret in (True, False))
    assert hidden.schedule.secret
    assert not any(terms.schedule.secret for terms in shown.all_terms)
    assert hidden.evaluations < shown.evaluations / 3
    assert hidden.secrecy <= hidden.privacy.room
    assert hidden.statement(seeded=False).epsilon <= 1.0
    assert shown.secrecy == 0.0
    for method in (bs.Tight(radius=1.0, bounds=bs.Bounds(clip=1.0)), bs.Questions()):
        assert not bs.plan(method, **sizes).secret
