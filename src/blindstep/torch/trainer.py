"""`Trainer`: private training with the names that users of `transformers.Trainer` know.

It is `blindstep.torch.minimize` with a loss made of the model's scores, and it evaluates on public data
after each round. PyTorch is all that it imports: models, tokenizers, data sets and arguments of Hugging
Face are used by their names.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch

from blindstep.errors import IgnoredArguments, InvalidArgument, warn
from blindstep.ledger.budget import Privacy
from blindstep.planning.auto import Auto
from blindstep.planning.networks import MOST_DIFFERENTIATED
from blindstep.torch.hugging_face import (
    LABELS,
    check_classes,
    collator,
    is_causal,
    plain_attention,
    record_losses,
    scores_of,
    taken_apart,
)
from blindstep.torch.records import Collate, Records
from blindstep.torch.tuned_model import TunedModel
from blindstep.torch.tuning import in_evaluation, minimize
from blindstep.torch.weights import Weights

# The file beside `save_pretrained`'s.
TUNED = "tuned.blindstep"
_BATCH, _OUTPUT = 64, "trainer_output"
# What a private run finds itself, or has no use for.
_IGNORED = (
    *("learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm"),
    *("max_steps", "lr_scheduler_type", "warmup_steps", "optim", "gradient_accumulation_steps"),
    *("label_smoothing_factor", "neftune_noise_alpha", "gradient_checkpointing", "fp16", "bf16"),
)

# From the model's output and the labels to one number for each record.
LossOfOutputs = Callable[[Any, torch.Tensor], torch.Tensor]


class EvalPrediction(NamedTuple):
    """What `compute_metrics` gets."""

    predictions: np.ndarray
    label_ids: np.ndarray


class PredictionOutput(NamedTuple):
    """What `Trainer.predict` gives."""

    predictions: np.ndarray
    label_ids: np.ndarray | None
    metrics: dict[str, float]


class TrainOutput(NamedTuple):
    """What `Trainer.train` gives."""

    global_step: int
    metrics: dict[str, float]
    result: TunedModel


class Trainer:
    """Trains a model of Hugging Face, or any that gives `logits`, privately.

        trainer = blindstep.torch.Trainer(
            model=model,                       # PEFT models too: what requires a gradient is trained
            args=transformers.TrainingArguments("out", eval_strategy="epoch"),
            train_dataset=train,               # private
            eval_dataset=public,               # public, or published: figures about it are exact
            privacy=bs.Privacy(epsilon=8, delta=1e-5),
        )
        trainer.train()
        trainer.save_model("out")

    Of `args` it heeds `output_dir`, `num_train_epochs` (at most so many passes; transformers' default
    of 3 counts as not said), the batch sizes (what goes through the model at a time: memory, not
    learning), `eval_strategy` (anything but "no": after each round, a sixteenth of the run),
    `load_best_model_at_end`, `metric_for_best_model`, `greater_is_better` and `disable_tqdm`. Rates,
    schedules and clips are not heeded: the run finds them, and says which of yours it passed over. A
    seed of theirs is not one of ours: a seeded run is not private.

    A collator is called with one record at a time, and all must come out in one shape: pad with
    `padding="max_length"`.

    Attributes:
        model: the model; trained in place.
        state: `log_history`, `best_metric` and `global_step`, as transformers has them.
        result: the `TunedModel` of the last `train`: privacy, plan, outcome, `state_dict()`.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        args: Any = None,
        data_collator: Collate | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        compute_loss_func: LossOfOutputs | None = None,
        compute_metrics: Callable[[EvalPrediction], Mapping[str, float]] | None = None,
        callbacks: list[Any] | None = None,
        *,
        privacy: Privacy,
        **options: Any,
    ) -> None:
        """Take over what `transformers.Trainer` takes, and a budget.

        Args:
            model: the model. What requires a gradient is trained.
            args: `transformers.TrainingArguments`, or anything with attributes of these names.
            data_collator: makes tensors of a list with one record.
            train_dataset: the private records, such as a `datasets.Dataset`.
            eval_dataset: *public* records: what is computed from them has no noise.
            processing_class: a tokenizer, say; saved beside the model.
            compute_loss_func: one number for each record from the model's output and the labels; by
                default cross-entropy, squared error for one score, a mean over tokens for tokens.
            compute_metrics: from an `EvalPrediction` to figures by name.
            callbacks: such as `transformers.EarlyStoppingCallback`; `on_train_begin`, `on_evaluate`,
                `on_log` and `on_train_end` are called, and `control.should_training_stop` ends the run.
                Functions among them are `minimize`'s: they are told what each step released.
            privacy: the budget.
            options: of `blindstep.torch.minimize`: method, people, checkpoint, ledger, budget, ... By
                default gradients are used where those of single records fit into memory.
        """
        known = inspect.signature(minimize).parameters
        ours = {"model", "loss", "data", "privacy", "collate", "batch", "progress", "callbacks"}
        ours.add("after_round")
        unknown = sorted(set(options) - (set(known) - ours))
        if unknown:
            raise InvalidArgument(
                f"Trainer has no argument {', '.join(unknown)}: beside those of transformers' it has "
                f"{', '.join(sorted(set(known) - ours))}."
            )
        self.model, self.args = model, args
        self.train_dataset, self.eval_dataset = train_dataset, eval_dataset
        self.processing_class = processing_class
        self._loss_of, self._metrics_of = compute_loss_func, compute_metrics
        self._callbacks, self._privacy, self._options = list(callbacks or ()), privacy, options
        self._collate = collator(model, data_collator, self._heeded("remove_unused_columns", True))
        self.state = SimpleNamespace(
            **{"log_history": [], "best_metric": None, "best_model_checkpoint": None},
            **{"global_step": 0, "epoch": 0.0, "is_world_process_zero": True, "max_steps": 0},
            **{"is_local_process_zero": True, "is_hyper_param_search": False, "trial_name": None},
        )
        self.control = SimpleNamespace(should_training_stop=False)
        self.result: TunedModel | None = None
        self._best: int | None = None
        passed_over = [name for name in _IGNORED if self._said(name)]
        if passed_over:
            warn(
                f"not heeded: {', '.join(passed_over)}. A private run finds the lengths of its steps "
                "and its clip itself; `privacy` and `method` say the rest.",
                IgnoredArguments,
            )

    def train(self) -> TrainOutput:
        """Train the model, in place; the answer is the start if nothing better was found."""
        if self.train_dataset is None:
            raise InvalidArgument("there is nothing to train on: give train_dataset.")
        check_classes(self.model, self.train_dataset)
        evaluates = str(self._heeded("eval_strategy", "no")).rpartition(".")[2].lower() != "no"
        if evaluates and self.eval_dataset is None:
            raise InvalidArgument(
                "eval_strategy asks for evaluations: give eval_dataset, public data."
            )
        self.control.should_training_stop, self._best = False, None
        self.state.log_history, self.state.best_metric = [], None
        self._call("on_train_begin")
        with plain_attention(self.model):
            result = minimize(
                self.model,
                self._loss,
                self.train_dataset,
                self._privacy,
                collate=self._collate,
                batch=self._said("per_device_train_batch_size") or _BATCH,
                progress=False if self._said("disable_tqdm") else None,
                callbacks=[each for each in self._callbacks if callable(each)],
                after_round=self._after_round if evaluates else None,
                **{**self._options, "method": self._options.get("method") or self._method()},
            )
        chosen = self._best if self._heeded("load_best_model_at_end", False) else None
        if chosen and result.best_round is not None:  # else the start: nothing was better
            result = result.at_round(chosen - 1)
        self.result, self.state.global_step = result, int(result.history.move_norm.size)
        self._call("on_train_end")
        figures = {"epsilon": result.privacy.epsilon, "epoch": float(result.plan.passes)}
        return TrainOutput(self.state.global_step, figures, result)

    def evaluate(
        self, eval_dataset: Any = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """The mean loss, and your metrics, on *public* data: exact figures, which nothing protects."""
        given = self.eval_dataset if eval_dataset is None else eval_dataset
        if given is None or given is self.train_dataset:
            raise InvalidArgument(
                "evaluate wants public data: exact figures about the training records are not "
                "private. Give eval_dataset; `blindstep.value` releases a mean with noise."
            )
        found = self.predict(given, metric_key_prefix).metrics
        self._log(found)
        self._call("on_evaluate", metrics=found)
        return found

    def predict(self, test_dataset: Any, metric_key_prefix: str = "test") -> PredictionOutput:
        """The model's scores of public records; with labels the loss and your metrics, too."""
        records = Records(test_dataset, self._collate)
        device = next(self.model.parameters()).device
        size = min(self._said("per_device_eval_batch_size") or _BATCH, records.number)
        scores, labels, losses = [], [], []
        with in_evaluation(self.model), plain_attention(self.model), torch.inference_mode():
            for rows in np.split(np.arange(records.number), range(size, records.number, size)):
                inputs, own = taken_apart(records.batch(rows, device).rows)
                outputs = self.model(**inputs)
                scores.append(scores_of(outputs).float().cpu().numpy())
                if own is not None:
                    labels.append(own.cpu().numpy())
                    losses.append(self._of(outputs, own).double().cpu().numpy())
        predictions, found = np.concatenate(scores), {}
        if not labels:
            return PredictionOutput(predictions, None, found)
        known = np.concatenate(labels)
        found["loss"] = float(np.mean(np.concatenate(losses)))
        if self._metrics_of is not None:
            found |= dict(self._metrics_of(EvalPrediction(predictions, known)))
        prefix = f"{metric_key_prefix}_"
        named = {name if name.startswith(prefix) else prefix + name: v for name, v in found.items()}
        return PredictionOutput(predictions, known, named)

    def save_model(self, output_dir: str | os.PathLike[str] | None = None) -> None:
        """Write the model as `save_pretrained` does, and beside it the run's own file.

        That is `tuned.blindstep`, from which `blindstep.torch.load` makes the model out of its base.
        """
        folder = os.fspath(output_dir or self._heeded("output_dir", None) or _OUTPUT)
        os.makedirs(folder, exist_ok=True)
        save: Any = getattr(self.model, "save_pretrained", None)
        if save is None:
            torch.save(self.model.state_dict(), os.path.join(folder, "pytorch_model.bin"))
        else:
            save(folder)
        if self.processing_class is not None:
            self.processing_class.save_pretrained(folder)
        if self.result is not None:
            self.result.save(os.path.join(folder, TUNED))

    # -- the loss -------------------------------------------------------------------------------

    def _loss(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        inputs, labels = taken_apart(batch)
        if labels is None:
            raise InvalidArgument(f"records need one of {', '.join(LABELS)}")
        return self._of(model(**inputs), labels)

    def _of(self, outputs: Any, labels: torch.Tensor) -> torch.Tensor:
        if self._loss_of is not None:
            return self._loss_of(outputs, labels)
        return record_losses(scores_of(outputs), labels, shifted=is_causal(self.model))

    def _method(self) -> Auto:
        passes = self._said("num_train_epochs")
        fits = Weights(self.model).dim <= MOST_DIFFERENTIATED
        return Auto(
            estimate="gradient" if fits else "values", passes=passes and max(1, round(passes))
        )

    # -- evaluation during a run ----------------------------------------------------------------

    def _after_round(self, done: int) -> bool:
        self.state.epoch = float(done)
        found = self.evaluate()
        name = self._heeded("metric_for_best_model", None) or "loss"
        value = found.get(name if name.startswith("eval_") else f"eval_{name}")
        if value is None:
            raise InvalidArgument(f"metric_for_best_model is {name!r}: there are {sorted(found)}.")
        greater = self._heeded("greater_is_better", None)
        if greater is None:
            greater = not name.endswith("loss")
        best = self.state.best_metric
        if best is None or (value > best if greater else value < best):
            self.state.best_metric, self._best = value, done
        return bool(self.control.should_training_stop)

    def _log(self, figures: Mapping[str, float]) -> None:
        self.state.log_history.append({**figures, "epoch": self.state.epoch})
        self._call("on_log", logs=dict(figures))

    def _call(self, event: str, **about: Any) -> None:
        for each in self._callbacks:
            answer: Any = getattr(each, event, None)
            if answer is not None:
                answer(self.args, self.state, self.control, model=self.model, **about)

    # -- the arguments --------------------------------------------------------------------------

    def _heeded(self, name: str, default: Any) -> Any:
        return getattr(self.args, name, default)

    def _said(self, name: str) -> Any:
        """An argument that differs from its default, if its class has one; else None."""
        value = getattr(self.args, name, None)
        if dataclasses.is_dataclass(self.args):
            usual = {each.name: each.default for each in dataclasses.fields(self.args)}
            return None if value == usual.get(name) else value
        return value
