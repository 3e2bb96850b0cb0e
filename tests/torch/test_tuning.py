"""`blindstep.torch.minimize`: what it does to a model, and what it refuses."""

import warnings

import numpy as np
import pytest
import torch

import blindstep as bs
import blindstep.torch as tuning
from blindstep.errors import InvalidArgument, RunsInEvaluationMode
from small_networks import (
    EVALUATIONS,
    PRIVACY,
    RECORDS,
    Adapted,
    bits,
    loss,
    same,
    texts,
    transformer,
    tune,
)


def test_a_model_learns():
    torch.manual_seed(1)
    model = torch.nn.Linear(8, 2)
    chance = np.random.default_rng(0)
    x = chance.normal(size=(400, 8)).astype(np.float32)
    data = {"x": x, "y": (x[:, 0] + x[:, 1] > 0).astype(np.int64)}

    def of(model, batch):
        return torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"], reduction="none")

    def right():
        with torch.no_grad():
            return float((model(torch.from_numpy(x)).argmax(1).numpy() == data["y"]).mean())

    before = right()
    privacy = bs.Privacy(epsilon=4, delta=1e-4)
    result = tuning.minimize(
        model, of, data, privacy=privacy, evaluations=200_000, batch=400, seed=1
    )
    assert right() > max(0.85, before + 0.2)
    assert result.history.loss.shape == (result.plan.rounds, result.plan.horizon)
    assert result.privacy.epsilon == pytest.approx(4, rel=1e-6)
    assert "Gaussian differentially private" in str(result)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_tuned_model_is_a_small_file_that_replays_bit_for_bit(tmp_path, dtype):
    model, base = transformer(dtype), transformer(dtype)
    before = bits(model)
    result = tune(model)
    assert not same(before, bits(model))
    result.save(tmp_path / "tuned")
    assert (tmp_path / "tuned").stat().st_size < 40_000
    said = tuning.load(base, tmp_path / "tuned")
    assert same(bits(base), bits(model))
    assert said == str(result.privacy)


def test_another_base_model_and_a_damaged_file_are_refused(tmp_path):
    result = tune(transformer())
    path = tmp_path / "tuned"
    result.save(path)
    other = transformer()
    with torch.no_grad():
        other.head.weight[0, 0] += 1e-6
    for model, word in (
        (other, "another base model"),
        (transformer(torch.bfloat16), "another base model"),
        (torch.nn.Linear(2, 2), "requires_grad"),
    ):
        with pytest.raises(InvalidArgument, match=word):
            tuning.load(model, path)
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"round":', b'"round": '))
    with pytest.raises(InvalidArgument, match="SHA-256"):
        tuning.load(transformer(), path)


def test_adapters_are_tuned_and_nothing_else():
    model = transformer()
    model.requires_grad_(False)
    torch.manual_seed(2)
    model.head = Adapted(model.head)
    model = torch.nn.Sequential(model)
    before = bits(model)
    result = tune(model)
    after = bits(model)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == set(result.names)
    assert all("up" in name or "down" in name for name in changed)


def test_people_are_protected_whole_and_every_row_of_theirs_counts():
    people = np.arange(RECORDS) // 2
    result = tune(transformer(), people=people, rows=2)
    assert result.plan.records == RECORDS // 2
    assert "at most 2" in str(result.privacy)


def test_a_ledger_adds_up_and_a_budget_refuses(tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    budget = bs.Privacy(epsilon=6, delta=1e-4)
    tune(transformer(), ledger=ledger, budget=budget)
    model = transformer()
    before = bits(model)
    with pytest.raises(bs.BudgetExceeded):
        tune(model, ledger=ledger, budget=budget)
    assert same(before, bits(model))


def test_a_report_shows_the_run(tmp_path):
    result = tune(transformer())
    bs.report(result, tmp_path / "run.html")
    page = (tmp_path / "run.html").read_text()
    assert "epsilon" in page
    assert f"{result.plan.schedule.releases}" in page


def test_a_record_whose_loss_fails_counts_0_and_touches_nobody():
    data = texts()
    others = {name: column.copy() for name, column in data.items()}
    others["label"][5] = 99  # raises: there are not so many classes
    model, void = transformer(), transformer()

    def never_a_number(model, batch):
        found = loss(model, {**batch, "label": batch["label"].clamp(max=11)})
        return torch.where(batch["label"] == 99, torch.nan, found)

    tune(model, others)
    tune(void, others, loss=never_a_number)
    assert same(bits(model), bits(void))


def test_the_model_is_as_it_was_when_a_run_is_cut_short(monkeypatch):
    model, calls = transformer(), []
    model.train()
    before = bits(model)

    class Stop(BaseException):
        pass

    def show(self, *_):
        calls.append(1)
        if len(calls) == 5:
            raise Stop

    monkeypatch.setattr("blindstep.torch.run.RunProgress.show", show)
    with pytest.raises(Stop):
        tune(model)
    assert same(before, bits(model))
    assert model.training


def test_batch_norm_and_dropout_get_a_clear_word():
    layers = torch.nn.BatchNorm1d(6), torch.nn.Dropout(0.5), torch.nn.Linear(6, 2)
    model = torch.nn.Sequential(*layers).train()
    data = {"x": torch.randn(RECORDS, 6), "y": torch.randint(2, (RECORDS,))}

    def of(model, batch):
        return torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"], reduction="none")

    before = layers[0].running_mean.clone()
    with pytest.warns(RunsInEvaluationMode, match=r"1 BatchNorm.*not updated.*1 dropout.*off"):
        tune(model, data, loss=of)
    assert torch.equal(before, layers[0].running_mean)
    assert model.training
    with pytest.raises(InvalidArgument, match="without running statistics"):
        tune(torch.nn.BatchNorm1d(6, track_running_stats=False), data, loss=of)


@pytest.mark.parametrize(
    ("broken", "word"),
    [
        (lambda model, batch: loss(model, batch).mean(), "shape"),
        (lambda model, batch: loss(model, batch) / loss(model, batch).sum(), "beside it"),
        (lambda model, batch: model(batch["no such column"]), "no such column"),
        (lambda model, batch: 1.0, "float"),
    ],
)
def test_a_loss_that_cannot_work_is_refused_before_anything_is_spent(tmp_path, broken, word):
    with pytest.raises(InvalidArgument, match=word):
        tune(transformer(), loss=broken, checkpoint=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_plan_can_be_seen_first_and_must_fit():
    model = transformer()
    made = tuning.plan(model, RECORDS, privacy=PRIVACY, evaluations=EVALUATIONS)
    assert made.evaluations <= EVALUATIONS
    assert "signs" in str(made)
    with pytest.raises(InvalidArgument, match=r"blindstep\.torch\.plan"):
        tune(model, texts(RECORDS + 1), plan=made)
    with pytest.raises(InvalidArgument, match="not both"):
        tuning.minimize(model, loss, texts(), plan=made, privacy=PRIVACY)
    with pytest.raises(InvalidArgument, match="privacy="):
        tuning.minimize(model, loss, texts())
    with pytest.raises(InvalidArgument, match=r"blindstep\.torch"):
        bs.Optimizer(made, np.zeros(made.dim))


def test_without_evaluations_a_run_is_sized_by_made_up_records(monkeypatch):
    monkeypatch.setattr("blindstep.torch.tuning._SECONDS", 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bs.HopelessPlan)
        result = tune(transformer(), evaluations=None)
    assert result.plan.evaluations <= 4096
