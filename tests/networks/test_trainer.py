"""`blindstep.torch.Trainer`: the names of Hugging Face, on models made on the spot."""

import datasets
import numpy as np
import peft
import pytest
import torch
import transformers

import blindstep as bs
import blindstep.torch as tuning
from blindstep.errors import IgnoredArguments, InvalidArgument
from blindstep.ledger.ledger import read_ledger
from blindstep.torch.hugging_face import plain_attention, record_losses

pytestmark = [
    pytest.mark.filterwarnings("ignore::blindstep.errors.HopelessPlan"),
    pytest.mark.filterwarnings("ignore::blindstep.errors.RunsInEvaluationMode"),
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
]
WORDS, LENGTH, RECORDS = 20, 6, 200
PRIVACY = bs.Privacy(epsilon=8, delta=1e-4)
SIZES = {
    "vocab_size": WORDS,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": LENGTH,
    "initializer_range": 0.3,
}


def classifier(labels=2, **about):
    torch.manual_seed(0)
    config = transformers.BertConfig(**SIZES, num_labels=labels, **about)
    return transformers.BertForSequenceClassification(config)


def adapted():
    return peft.get_peft_model(classifier(), peft.LoraConfig(task_type="SEQ_CLS", r=2))


def texts(number=RECORDS, seed=0):
    """Texts of even or odd words; some are padded."""
    chance = np.random.default_rng(seed)
    label = chance.integers(2, size=number)
    words = 2 * chance.integers(1, WORDS // 2 - 1, size=(number, LENGTH)) + label[:, None]
    mask = np.arange(LENGTH) < chance.integers(3, LENGTH + 1, size=number)[:, None]
    columns = {"input_ids": words * mask, "attention_mask": mask.astype(int), "label": label}
    rows = {name: column.tolist() for name, column in columns.items()}
    made = datasets.Dataset.from_dict({**rows, "text": ["a text"] * number})
    return made.cast_column("label", datasets.ClassLabel(2))


def right(found):
    return {"accuracy": float(np.mean(found.predictions.argmax(-1) == found.label_ids))}


def trainer(model, args=None, passes=40, **options):
    method = bs.Auto(estimate="gradient", passes=passes)
    about = {"train_dataset": texts(), "eval_dataset": texts(100, 1), "compute_metrics": right}
    return tuning.Trainer(
        model, args, privacy=PRIVACY, **{"method": method, "seed": 1, **about, **options}
    )


def arguments(folder, **about):
    return transformers.TrainingArguments(str(folder), report_to="none", **about)


def test_an_adapter_and_a_head_learn_and_are_saved(tmp_path):
    model = adapted()
    base = {name: each.detach().clone() for name, each in model.state_dict().items()}
    args = arguments(tmp_path / "out", num_train_epochs=20)
    made = trainer(model, args, method=None, train_dataset=texts(800))
    before = made.evaluate()
    done = made.train()
    assert made.evaluate()["eval_loss"] < before["eval_loss"] - 0.05
    assert made.evaluate()["eval_accuracy"] > 0.75
    assert done.result.plan.differentiates
    assert done.result.plan.passes <= 20
    assert 7.9 < done.metrics["epsilon"] <= 8.0
    assert all("lora" in name or "classifier" in name for name in done.result.names)
    assert model.get_base_model().config._attn_implementation == "sdpa"
    made.save_model()
    tuned = dict(model.state_dict())
    other = adapted()
    other.load_state_dict(base)
    assert tuning.load(other, tmp_path / "out" / "tuned.blindstep") == str(done.result.privacy)
    assert all(torch.equal(each, tuned[name]) for name, each in other.state_dict().items())
    other.load_state_dict(base)
    other.load_state_dict(done.result.state_dict(), strict=False)
    assert all(torch.equal(each, tuned[name]) for name, each in other.state_dict().items())
    again = peft.PeftModel.from_pretrained(classifier(), tmp_path / "out").eval()
    batch = {name: torch.tensor(texts(4)[name]) for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        assert torch.allclose(again(**batch).logits, model.eval()(**batch).logits, atol=1e-6)


def test_it_is_minimize_and_nothing_else():
    """The same weights, bit for bit, as a call of `minimize` with the loss written out."""
    model, other = adapted(), adapted()
    made = trainer(model, passes=5)
    made.train()
    rows = texts()

    def loss(model, batch):
        scores = model(batch["input_ids"], batch["attention_mask"]).logits
        return torch.nn.functional.cross_entropy(scores, batch["label"], reduction="none")

    names = ("input_ids", "attention_mask", "label")
    data = {name: torch.tensor(rows[name]) for name in names}
    with plain_attention(other):
        method = bs.Auto(estimate="gradient", passes=5)
        tuning.minimize(other, loss, data, PRIVACY, method=method, seed=1)
    ours, theirs = model.state_dict(), other.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("estimate", ["gradient", "values"])
def test_public_data_stop_a_run_early_and_choose_its_round(tmp_path, estimate):
    args = arguments(
        tmp_path,
        eval_strategy="epoch",
        load_best_model_at_end=True,
        save_strategy="epoch",
        metric_for_best_model="accuracy",
    )
    figures = [0.5, 0.6, 0.8, 0.7, 0.7, 0.7, 0.9]
    told = iter(figures)
    made = trainer(
        adapted(),
        args,
        method=bs.Auto(evaluations=8192, estimate=estimate, secret=False),
        compute_metrics=lambda _: {"accuracy": next(told)},
        callbacks=[transformers.EarlyStoppingCallback(early_stopping_patience=3)],
        ledger=tmp_path / "ledger.jsonl",
    )
    result = made.train().result
    # At the start and after five rounds; of rounds from 0 on the second was the best.
    assert [each["eval_accuracy"] for each in made.state.log_history] == figures[:6]
    assert result.history.move_norm.shape == (5, result.plan.horizon)
    assert made.state.best_metric == 0.8
    assert result.best_round in (None, 1)
    spent = read_ledger(tmp_path / "ledger.jsonl").spent()
    assert 0.0 < spent < 0.8 * result.plan.mu


def test_a_run_that_went_on_asks_about_all_its_rounds_again(tmp_path):
    asked = []

    def after_round(number):
        asked.append(number)
        if len(asked) == 5:
            raise RuntimeError("the machine is gone")
        return number == 6

    options = {"method": bs.Auto(evaluations=4096, secret=False), "seed": 3, "batch": 48}
    data = {"x": torch.randn(48, 4), "y": torch.randn(48)}

    def loss(model, batch):
        return (model(batch["x"])[:, 0] - batch["y"]).abs()

    def line():
        torch.manual_seed(0)
        return torch.nn.Linear(4, 1)

    about = (loss, data, PRIVACY)
    model, whole = line(), line()
    with pytest.raises(RuntimeError, match="gone"):
        tuning.minimize(
            line(), *about, **options, checkpoint=tmp_path / "run", after_round=after_round
        )
    tuning.minimize(model, *about, **options, checkpoint=tmp_path / "run", after_round=after_round)
    assert asked == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6]
    tuning.minimize(whole, *about, **options, after_round=lambda number: number == 6)
    assert torch.equal(model.weight, whole.weight)


def test_a_records_loss_is_the_models_own():
    ids, mask = torch.tensor([[1, 2, 3, 4, 0, 0]]), torch.tensor([[1, 1, 1, 1, 0, 0]])
    tokens = torch.tensor([[-100, 1, 0, 1, -100, -100]])
    gpt = transformers.GPT2Config(
        vocab_size=WORDS, n_embd=8, n_layer=1, n_head=2, n_positions=LENGTH, pad_token_id=0
    )
    token = transformers.BertForTokenClassification(transformers.BertConfig(**SIZES))
    for model, labels in (
        (classifier(3), torch.tensor([2])),
        (classifier(1, problem_type="regression"), torch.tensor([0.7])),
        (classifier(3, problem_type="multi_label_classification"), torch.tensor([[1.0, 0.0, 1.0]])),
        (token, tokens),
        (transformers.GPT2LMHeadModel(gpt), torch.where(mask == 1, ids, -100)),
    ):
        with torch.no_grad():
            made = model.eval()(input_ids=ids, attention_mask=mask, labels=labels)
        shifted = isinstance(model, transformers.GPT2LMHeadModel)
        found = record_losses(made.logits, labels, shifted=shifted)
        assert found.shape == (1,)
        assert float(found) == pytest.approx(float(made.loss), rel=1e-5)
    with pytest.raises(ValueError, match="compute_loss_func"):
        record_losses(torch.zeros(2, 3), torch.zeros(2, 4, 5))


def test_plain_attention_is_the_usual_one_and_goes_together():
    model = adapted().eval()
    rows = texts(8)
    batch = {name: torch.tensor(rows[name]) for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        usual = model(**batch).logits
        with plain_attention(model):
            plain = model(**batch).logits
            alone = [model(**{n: each[row][None] for n, each in batch.items()}) for row in range(8)]
            many = torch.func.vmap(lambda i, m: model(i[None], m[None]).logits[0])
            together = many(*batch.values())
    assert torch.allclose(usual, plain, atol=1e-6)
    assert torch.allclose(plain, together, atol=1e-6)
    assert torch.allclose(plain, torch.cat([each.logits for each in alone]), atol=1e-6)


def test_what_cannot_be_is_refused_before_anything_is_spent(tmp_path):
    rows = texts().cast_column("label", datasets.ClassLabel(5))
    made = trainer(adapted(), train_dataset=rows, ledger=tmp_path / "ledger.jsonl")
    with pytest.raises(InvalidArgument, match=r"5 classes.*scores 2.*num_labels=5"):
        made.train()
    assert not (tmp_path / "ledger.jsonl").exists()
    private = texts()
    with pytest.raises(InvalidArgument, match="public data"):
        trainer(adapted(), train_dataset=private).evaluate(private)
    with pytest.raises(InvalidArgument, match="give train_dataset"):
        trainer(adapted(), train_dataset=None).train()
    with pytest.raises(InvalidArgument, match="no argument learning_rate"):
        trainer(adapted(), learning_rate=0.1)
    with pytest.warns(IgnoredArguments, match="learning_rate, weight_decay"):
        trainer(adapted(), arguments(tmp_path, learning_rate=0.1, weight_decay=0.1))
