"""`blindstep.torch.minimize`: what it does to a model, and what it refuses."""

import warnings

import numpy as np
import pytest
import torch

import blindstep as bs
import blindstep.torch as tuning
from blindstep.errors import InvalidArgument, RunsInEvaluationMode
from blindstep.estimate.scales import Units
from blindstep.insight.hand_over_seal import check
from blindstep.ledger import files
from blindstep.ledger.ledger import read_ledger
from blindstep.torch.run import within_reason
from small_networks import (
    EVALUATIONS,
    METHOD,
    PRIVACY,
    RECORDS,
    WORDS,
    Adapted,
    bits,
    loss,
    same,
    texts,
    transformer,
    tune,
    uncompared,
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
        model, of, data, privacy, method=bs.Auto(evaluations=200_000), batch=400, seed=1
    )
    assert result.plan.secret
    assert right() > max(0.85, before + 0.2)
    assert result.history.loss.shape == (result.plan.rounds, result.plan.horizon)
    assert 3.95 < result.privacy.epsilon <= 4.0
    assert "Gaussian differentially private" in str(result)


@pytest.mark.parametrize("seed", [19, 20, 34])
def test_a_direction_that_the_loss_ignores_makes_no_step_endless(seed):
    # Both scores of a softmax may change alike, and these runs were lost to it. Two things keep them
    # now: slopes must stand out of noise, and units are within reason. Either is enough here.
    torch.manual_seed(1)
    model = torch.nn.Linear(8, 2)
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(400, 8)).astype(np.float32))
    data = {"x": x, "y": (x[:, 0] + x[:, 1] > 0).long()}

    def of(model, batch):
        return torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"], reduction="none")

    privacy = bs.Privacy(epsilon=4, delta=1e-4)
    method = bs.Auto(evaluations=40_000, secret=False)
    plan = uncompared(model, 400, privacy, method)
    result = tuning.minimize(model, of, data, method=plan, seed=seed)
    assert len(result.plan.calibration.leaves) == 2  # each leaf has a unit of its own
    with torch.no_grad():
        assert float(of(model, data).mean()) < 0.65  # of a start at 0.75


def test_a_unit_is_within_reason_for_the_size_of_its_tensor():
    def kept(found, seen, lengths=(1.0, 1.0, 2.0), own=(0.1, 0.1, 0.1)):
        units = Units(np.array(found), 1.0, False, np.array(seen))
        return within_reason(units, np.array(lengths), (6400, 64, 100), np.array(own)).tolist()

    every = [True, True, True]
    assert kept([0.5, 0.01, 0.3], every) == pytest.approx([0.5, 0.01, 0.6])
    assert kept([0.5, 1e6, 9.0], every) == pytest.approx([0.5, 0.4, 1.0])
    assert kept([7.0, 1e6, 0.3], [False, False, True]) == pytest.approx([0.1, 0.1, 0.6])
    assert kept([0.01, 3.0, 3.0], [False] * 3) == pytest.approx([0.01, 0.1, 0.1])
    assert kept([7.0], [False]) == pytest.approx([7.0, 7.0, 14.0])  # one unit for all


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


def test_a_file_that_is_not_there_gets_a_clear_word(tmp_path):
    with pytest.raises(InvalidArgument, match="tuned is not there: give the path"):
        tuning.load(transformer(), tmp_path / "tuned")


def test_time_is_said_before_anything_is_spent_and_callbacks_are_told(tmp_path, capsys):
    told = []

    def callback(released):
        told.append(released)
        return released.round == 2

    model = transformer()
    result = tune(model, progress=True, callbacks=[callback], checkpoint=tmp_path / "run")
    lines = capsys.readouterr().err.splitlines()
    time = next(number for number, line in enumerate(lines) if "evaluations take about" in line)
    advice = next(number for number, line in enumerate(lines) if "estimate='gradient'" in line)
    spent = next(number for number, line in enumerate(lines) if "calibration" in line)
    assert max(time, advice) < spent
    assert [each.step for each in told] == list(range(1, 2 * result.plan.horizon + 1))
    assert result.history.move_norm.shape == (2, result.plan.horizon)


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


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_adapters_that_start_at_0_learn(seed):
    # Their first factor has no slope as long as the second one is 0, and then it has.
    torch.manual_seed(seed)
    layers = torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)
    model = torch.nn.Sequential(
        *(Adapted(m, 4) if len(list(m.parameters())) else m for m in layers)
    )
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(1000, 16)).astype(np.float32))
    data = {"x": x, "y": x[:, :4].argmax(1)}

    def of(model, batch):
        return torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"], reduction="none")

    def mean():
        with torch.no_grad():
            return float(of(model, data).mean())

    before, privacy = mean(), bs.Privacy(epsilon=8, delta=1e-5)
    method = bs.Auto(evaluations=500_000)
    tuning.minimize(model, of, data, privacy, method=method, batch=500, seed=seed)
    assert mean() < before - 0.05


def test_people_are_protected_whole_and_every_row_of_theirs_counts():
    people = np.arange(RECORDS) // 2
    result = tune(transformer(), people=bs.People(people, rows=2))
    assert result.plan.records == RECORDS // 2
    assert "at most 2" in str(result.privacy)


def test_a_ledger_adds_up_and_a_budget_refuses(tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    budget = bs.Privacy(epsilon=6, delta=1e-4)
    tune(transformer(), ledger=ledger, budget=budget)
    model = transformer()
    before = bits(model)
    with pytest.raises(bs.errors.BudgetExceeded):
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


def test_the_model_is_as_it_was_when_a_run_is_cut_short(monkeypatch, tmp_path):
    model, calls = transformer(), []
    model.train()
    before = bits(model)

    def moved(self):
        calls.append(1)
        if len(calls) == 15:  # after the looks
            raise KeyboardInterrupt

    monkeypatch.setattr("blindstep.torch.run.RunProgress._moved", moved)
    with pytest.raises(KeyboardInterrupt, match="the same call goes on where it was") as stopped:
        tune(model, progress=True, checkpoint=tmp_path / "run")
    assert stopped.value.__context__ is None
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
        # Mixing is found whatever the size of the loss.
        (lambda model, batch: 1e-6 * loss(model, batch) * loss(model, batch).max(), "beside it"),
        (
            lambda model, batch: loss(model, {**batch, "text": batch["text"].zero_()}),
            "writes to its",
        ),
        (lambda model, batch: loss(transformer(), batch), "does not change with the parameters"),
    ],
)
def test_a_loss_that_cannot_work_is_refused_before_anything_is_spent(tmp_path, broken, word):
    with pytest.raises(InvalidArgument, match=word):
        tune(transformer(), loss=broken, checkpoint=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_on_labels_out_of_range_stops_after_its_looks(tmp_path):
    """Every record counts 0, which only releases may tell: the steps are not spent for nothing."""
    data, privacy, run = texts(300), bs.Privacy(mu=8.0), tmp_path / "run"
    data["label"] = data["label"] + WORDS
    with pytest.raises(InvalidArgument, match="Are labels within") as stopped:
        tuning.minimize(transformer(), loss, data, privacy, method=METHOD, checkpoint=run)
    spent = read_ledger(run / "ledger.jsonl").spent()
    assert 0.0 < spent < 0.5 * privacy.mu
    assert f"mu {spent:.3g} of" in str(stopped.value)


def test_a_plan_can_be_seen_first_and_must_fit():
    model = transformer()
    made = tuning.plan(model, RECORDS, PRIVACY, METHOD)
    assert made.evaluations <= EVALUATIONS
    assert "signs" in str(made)
    with pytest.raises(InvalidArgument, match=r"blindstep\.torch\.plan"):
        tune(model, texts(RECORDS + 1), method=made)
    with pytest.raises(InvalidArgument, match="not both"):
        tuning.minimize(model, loss, texts(), PRIVACY, method=made)
    with pytest.raises(InvalidArgument, match="privacy="):
        tuning.minimize(model, loss, texts())
    with pytest.raises(InvalidArgument, match=r"blindstep\.torch"):
        bs.Optimizer(made, np.zeros(made.dim))


def test_without_evaluations_a_run_is_sized_by_made_up_records(monkeypatch):
    monkeypatch.setattr("blindstep.torch.tuning._SECONDS", 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bs.errors.HopelessPlan)
        result = tune(transformer(), method=None)
    assert result.plan.evaluations <= 4096


class Observer(torch.nn.Module):
    """A layer that remembers what it saw, also in evaluation mode."""

    def __init__(self):
        super().__init__()
        self.layer = transformer()
        self.register_buffer("most", torch.zeros(()))
        self.fixed = torch.nn.Parameter(torch.zeros(2), requires_grad=False)

    def forward(self, text):
        self.most.copy_(torch.maximum(self.most, text.max()))
        self.fixed.add_(1.0)
        return self.layer(text) * (1.0 + 0.01 * self.most)


def test_what_a_layer_writes_down_is_forgotten():
    model = Observer()
    tune(model)
    assert float(model.most) == 0.0
    assert torch.equal(model.fixed, torch.zeros(2))
    assert isinstance(model.fixed, torch.nn.Parameter)


def test_a_loss_that_takes_its_batch_apart_works():
    def popping(model, batch):
        label = batch.pop("label")
        return torch.nn.functional.cross_entropy(model(batch["text"]), label, reduction="none")

    model, other = transformer(), transformer()
    tune(model)
    tune(other, loss=popping)
    assert same(bits(model), bits(other))


def test_tensors_that_share_memory_are_refused():
    model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Linear(6, 6))
    model[1].weight = torch.nn.Parameter(model[0].weight.data)
    with pytest.raises(InvalidArgument, match="shares its memory"):
        tune(model)


def test_numbers_in_a_file_that_do_not_belong_together_are_refused(tmp_path):
    path = tmp_path / "tuned"
    tune(transformer()).save(path)
    body, _ = files.unseal(path.read_bytes().rstrip())
    base = transformer()
    before = bits(base)
    for change in ({"round": 99}, {"round": -1}, {"lengths": ""}, {"tuned": "0" * 64}):
        path.write_bytes(files.seal({**body, **change}))
        with pytest.raises(InvalidArgument):
            tuning.load(base, path)
        assert same(before, bits(base))


def test_a_tuned_model_is_handed_over_as_the_file_that_makes_it(tmp_path):
    model, base = transformer(), transformer()
    folder = bs.hand_over(tune(model), tmp_path / "folder", about={"name": "A tuned model"})
    assert check(folder).files >= 8
    code = (folder / "README.md").read_text().partition("```python\n")[2].partition("```")[0]
    exec(code.replace("tuned.json", str(folder / "tuned.json")), {"model": base})
    assert same(bits(base), bits(model))
