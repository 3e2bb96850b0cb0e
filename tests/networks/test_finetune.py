"""The problems and the first-order baseline of `benchmarks.finetune`, without the language model."""

from __future__ import annotations

import json
import math
import warnings
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from benchmarks import (
    finetune,
    finetune_first_order,
    finetune_peers,
    finetune_problems,
    networks,
    networks_problems,
)
from benchmarks.finetune_problems import Task
from examples import finetune_sst2

import blindstep as bs
from blindstep.errors import InvalidArgument

PRIVACY = bs.Privacy(epsilon=2, delta=1e-5)
INPUTS, OUTPUTS, RECORDS = 3, 2, 10


class Letters:
    """A tokenizer whose tokens are the characters' numbers."""

    def __call__(self, text, add_special_tokens=True):
        assert not add_special_tokens
        return {"input_ids": [ord(letter) for letter in text]}


def task(rows: int = 40) -> Task:
    texts = [f"text {row}" for row in range(rows)]
    labels = [int(row % 4 == 0) for row in range(rows)]
    return Task("{}:", ("a", "b"), 6, (texts, labels), (texts[:5], labels[:5]))


def small(seeds=(0, 1)):
    return finetune_problems.tokenise(task(), Letters(), per_class=12, seeds=seeds)


# Records.


def test_a_record_is_padded_on_the_right_and_loses_its_beginning():
    data = finetune_sst2.encode(Letters(), ["ab ", "abcdefgh"], [1, 0], ("x", "y"), 5, "{}!")
    assert [chr(token) for token in data["ids"][0]] == ["a", "b", "!", "\0", "\0"]
    assert "".join(chr(token) for token in data["ids"][1]) == "efgh!"
    assert data["last"].tolist() == [2, 4]
    assert data["label"].tolist() == [1, 0]


def test_a_label_without_a_word_is_refused():
    with pytest.raises(ValueError, match="0 to 1"):
        finetune_sst2.encode(Letters(), ["a"], [2], ("x", "y"), 5)


def test_words_of_several_tokens_are_refused():
    assert finetune_sst2.word_tokens(Letters(), ("x", "y")) == [ord("x"), ord("y")]
    with pytest.raises(ValueError, match="long"):
        finetune_sst2.word_tokens(Letters(), ("x", "long"))


def test_classes_are_balanced_or_complete_and_a_seed_is_a_choice():
    labels = [int(row % 4 == 0) for row in range(40)]
    rows = finetune_sst2.choose(labels, 12, seed=0)
    assert np.bincount(np.take(labels, rows)).tolist() == [12, 10]
    assert len(set(rows.tolist())) == 22
    assert np.array_equal(rows, finetune_sst2.choose(labels, 12, seed=0))
    assert not np.array_equal(rows, finetune_sst2.choose(labels, 12, seed=1))


def test_a_table_is_read_with_its_quotation_marks(tmp_path):
    (tmp_path / "own.tsv").write_text('sentence\tlabel\n"so" good \t1\nbad\t0\n', "utf-8")
    assert finetune_sst2.read_tsv(tmp_path / "own.tsv") == (['"so" good ', "bad"], [1, 0])


def test_a_line_that_is_no_record_is_named_by_its_number_alone(tmp_path):
    (tmp_path / "own.tsv").write_text("sentence\tlabel\ngood\t1\nsecret\t7\n", "utf-8")
    with pytest.raises(SystemExit, match="line 3") as refused:
        finetune_sst2.read_tsv(tmp_path / "own.tsv")
    assert "secret" not in str(refused.value)


def test_questions_are_read_in_latin_1(tmp_path):
    # 0x85 ends a line for str.splitlines.
    (tmp_path / "train.txt").write_bytes(b"3 Who is Bj\xf6rn \x85 ?\n0 What ?\n")
    texts, labels = finetune_problems.read_trec(tmp_path / "train.txt")
    assert texts == ["Who is Björn \x85 ?", "What ?"]
    assert labels == [3, 0]
    with pytest.raises(InvalidArgument, match="is not there"):
        finetune_problems.read_trec(tmp_path / "none.txt")


# Problems.


def test_validation_and_training_records_are_different_rows():
    problem = small()
    for train, validation in zip(problem.train, problem.validation, strict=True):
        assert np.bincount(train["label"]).tolist() == [12, 10]
        rows = [{tuple(ids) for ids in part["ids"].tolist()} for part in (train, validation)]
        assert len(rows[0]) == 22
        assert len(rows[1]) == 18
        assert not rows[0] & rows[1]


def test_a_saved_problem_is_the_same_problem(tmp_path):
    before = {"first": small(), "second": small(seeds=(5,))}
    finetune_problems.save(tmp_path / "problems.npz", before)
    after = finetune_problems.load(tmp_path / "problems.npz")
    assert list(after) == ["first", "second"]
    for name, problem in before.items():
        loaded = after[name]
        assert loaded.word_ids == problem.word_ids
        pairs = [(loaded.test, problem.test)]
        pairs += zip(loaded.train, problem.train, strict=True)
        pairs += zip(loaded.validation, problem.validation, strict=True)
        for left, right in pairs:
            assert left.keys() == right.keys()
            assert all(torch.equal(left[column], right[column]) for column in right)
            assert all(values.dtype == torch.int64 for values in left.values())


# First order.


def model_and_data(seed: int = 0):
    rng = np.random.default_rng(seed)
    model = torch.nn.Linear(INPUTS, OUTPUTS, dtype=torch.float32)
    with torch.no_grad():
        model.weight.copy_(torch.from_numpy(rng.standard_normal((OUTPUTS, INPUTS))))
        model.bias.zero_()
    features = torch.from_numpy(rng.standard_normal((RECORDS, INPUTS)).astype(np.float32))
    return model, {"features": features, "label": torch.arange(RECORDS) % OUTPUTS}


def cross_entropy(model, batch):
    scores = model(batch["features"])
    return torch.nn.functional.cross_entropy(scores, batch["label"], reduction="none")


def gradient_of_each(model, data):
    rows = []
    for row in range(RECORDS):
        model.zero_grad()
        cross_entropy(
            model, {name: values[[row]] for name, values in data.items()}
        ).sum().backward()
        rows.append(torch.cat([model.weight.grad.flatten(), model.bias.grad]))
    return torch.stack(rows)


def clipped_mean(model, data, clip, microbatch, loss=cross_entropy):
    made = finetune_first_order.clipped_mean(model, loss, data, clip=clip, microbatch=microbatch)
    return torch.cat([made["weight"].flatten(), made["bias"]])


@pytest.mark.parametrize("microbatch", [1, 4, 64])
def test_each_record_is_clipped_by_its_whole_gradient(microbatch):
    model, data = model_and_data()
    each = gradient_of_each(model, data)
    norms = each.norm(dim=1, keepdim=True)
    clip = float(norms.median())
    assert 0 < int((norms > clip).sum()) < RECORDS
    expected = (each * (clip / norms).clamp(max=1)).mean(0)
    assert torch.allclose(clipped_mean(model, data, clip, microbatch), expected, atol=1e-6)


def test_a_record_without_a_finite_gradient_counts_zero():
    model, data = model_and_data()
    each = gradient_of_each(model, data)
    data["features"][0] = math.nan
    data["features"][1] = math.inf
    found = clipped_mean(model, data, 1e6, 4)
    assert torch.allclose(found, each[2:].sum(0) / RECORDS, atol=1e-6)


def test_tied_weights_have_one_gradient():
    model = torch.nn.Sequential(
        torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2, bias=False)
    )
    model[1].weight = model[0].weight
    data = {"features": torch.ones(1, 2)}

    def loss(model, batch):
        return model(batch["features"]).sum(1)

    made = finetune_first_order.clipped_mean(model, loss, data, clip=1e6, microbatch=1)
    loss(model, data).sum().backward()
    assert list(made) == ["0.weight"]
    assert torch.allclose(made["0.weight"], model[0].weight.grad)


def test_noise_is_calibrated_for_replacing_one_record_in_every_step():
    steps, clip, records = 9, 0.5, 100
    sigma = finetune_first_order.noise_std(PRIVACY, steps, clip, records)
    one_step = (2 * clip / records) / sigma
    assert math.isclose(math.sqrt(steps) * one_step, PRIVACY.mu, rel_tol=1e-12)


def released_norms(steps: int):
    """Norms of releases where every gradient is 0, and the standard deviation they should have."""
    model = torch.nn.Linear(100, 100)
    data = {"features": torch.zeros(RECORDS, 100)}

    def flat(model, batch):
        return 0 * model(batch["features"]).sum(1)

    found = finetune_first_order.train(
        model, flat, data, privacy=PRIVACY, steps=steps, clip=2.0, rate=1e-3, microbatch=4
    )
    return np.array(found["norms"]), found["noise_std"], 100 * 100 + 100


def test_what_is_released_has_the_noise_that_is_claimed():
    norms, sigma, size = released_norms(steps=20)
    assert sigma == finetune_first_order.noise_std(PRIVACY, 20, 2.0, RECORDS)
    # A mean of n squares of normal numbers has a relative standard deviation of sqrt(2 / n).
    assert abs((norms**2).mean() / (sigma**2 * size) - 1) < 5 * math.sqrt(2 / (20 * size))
    assert len(set(norms.tolist())) == 20
    assert not np.array_equal(norms, released_norms(steps=20)[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_training_moves_what_requires_gradients_and_nothing_else(dtype):
    model, data = model_and_data()
    model.to(dtype)
    model.bias.requires_grad_(False)
    weight, bias = model.weight.detach().clone(), model.bias.detach().clone()
    data["features"] = data["features"].to(dtype)
    generous = bs.Privacy(mu=1e3)
    before = cross_entropy(model, data).mean().item()
    found = finetune_first_order.train(
        model, cross_entropy, data, privacy=generous, steps=30, clip=1.0, rate=0.1, microbatch=4
    )
    assert model.weight.dtype == dtype
    assert not torch.equal(model.weight, weight)
    assert torch.equal(model.bias, bias)
    assert cross_entropy(model, data).mean().item() < before
    assert found["peak_memory"] is None
    assert found["seconds"] > 0


# The benchmark itself.


class SmallLanguageModel(torch.nn.Module):
    """As much of a language model as the benchmark uses."""

    def __init__(self, words: int = 200, width: int = 4) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(words, width)
        self.lm_head = torch.nn.Linear(width, words, bias=False)

    def model(self, input_ids, use_cache):
        hidden = torch.tanh(self.embedding(input_ids)).cumsum(1)
        return SimpleNamespace(last_hidden_state=hidden)


def test_every_part_of_the_benchmark_writes_its_rows_once(tmp_path, monkeypatch):
    monkeypatch.setattr(finetune, "WHOLE", 4000)
    monkeypatch.setattr(finetune, "CONTEST", 4000)
    monkeypatch.setattr(finetune, "BATCH", 22)
    monkeypatch.setattr(finetune, "FIRST_ORDER_STEPS", 2)
    monkeypatch.setattr(finetune, "FIRST_ORDER", finetune.FIRST_ORDER[:1])
    monkeypatch.setattr(finetune, "GAPS", finetune.GAPS[:1])
    monkeypatch.setattr(finetune_peers, "SETTINGS", finetune_peers.SETTINGS[:2])
    torch.manual_seed(0)
    path = tmp_path / "finetune.json"
    bench = finetune.Bench(SmallLanguageModel(), {"letters": small()}, path, {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bs.errors.HopelessPlan)
        warnings.simplefilter("ignore", bs.errors.LargeDelta)
        finetune.run(bench, list(finetune.PARTS), ["letters"], math.inf)
    rows = json.loads(path.read_text())["rows"]
    settings = len(finetune_peers.SETTINGS)
    count = Counter(row["part"] for row in rows)
    assert count == {
        "zero-shot": 1,
        "throughput": 3,
        "blindstep": 2,
        # Of each peer all settings on the first seed, and the best one on the second.
        "contest": 2 + 3 * (settings + 1),
        "gap": 1,
        "first-order": len(finetune.FIRST_ORDER),
    }
    assert all(row["evaluations"] <= 4000 for row in rows if "evaluations" in row)
    again = finetune.Bench(SmallLanguageModel(), {"letters": small()}, path, {})
    finetune.run(again, list(finetune.PARTS), ["letters"], math.inf)
    assert len(again.rows) == len(rows)


# Small networks.


def test_a_row_of_small_networks_has_points_and_a_time(monkeypatch):
    chance = torch.Generator().manual_seed(0)
    x = torch.randn((300, 6), generator=chance)
    rows = {"x": x, "y": (x[:, 0] > 0).long()}
    split = networks_problems.Split(rows, rows, 1_000)
    monkeypatch.setattr(networks, "split_of", lambda model: split)
    monkeypatch.setitem(networks_problems.MODELS, "line", lambda: torch.nn.Linear(6, 2))
    found = networks.row("line", "Adam", 0.0, 0)
    assert found["points"] > found["start"] + 5.0  # a hundred short steps
    assert found["seconds"] >= 0.0


@pytest.mark.parametrize("name", networks_problems.MODELS)
def test_models_of_the_benchmark_do_not_mix_records(name):
    bank = name == networks_problems.BANK
    shape, classes = ((3, 48), 2) if bank else ((3, 1, 14, 14), 10)
    records = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    model = networks_problems.MODELS[name]()
    with torch.no_grad():
        assert model(records).shape == (3, classes)
        torch.testing.assert_close(model(records)[1:2], model(records[1:2]))
