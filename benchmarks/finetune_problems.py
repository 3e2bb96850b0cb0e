"""The problems of `benchmarks.finetune`: SST-2 and TREC as the choice of a word after a prompt.

    python -m benchmarks.finetune_problems .carry/finetune.npz    # writes it; says how long prompts are

SST-2: 512 records a class, test = the 872 rows of GLUE's dev set. TREC: six classes of questions, 512
records a class or all there are (86 abbreviations), test = its 500 questions. A seed gives one training
set, and one validation set of rows of the training file that it left out. Baselines are tuned on that;
the test rows are for the reported figures only.

A file written by `save` holds tokens: who has it and the model needs neither texts nor tokenizer.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from examples import finetune_sst2
from rich.console import Console
from rich.table import Table

from blindstep.errors import InvalidArgument

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "data"
SEEDS = (0, 1, 2)
PER_CLASS = 512
VALIDATION = 1000
_STORED = {"ids": np.int32, "last": np.int16, "label": np.int16}
_PARTS = ("train", "validation")

Records = dict[str, torch.Tensor]
Rows = tuple[list[str], list[int]]


@dataclass(frozen=True)
class Task:
    """A problem before it is tokenised.

    Attributes:
        prompt: with the text in place of {}.
        words: one a class, each a single token with the space before it.
        length: tokens of a training record; others have twice as many. Longer texts lose their first
            words.
        train: texts and labels to choose training and validation sets from.
        test: texts and labels for the reported figures.
    """

    prompt: str
    words: tuple[str, ...]
    length: int
    train: Rows
    test: Rows


@dataclass(frozen=True)
class Problem:
    """A tokenised problem; records are `ids`, `last` and `label`, as `finetune_sst2.encode` makes them.

    Attributes:
        word_ids: the token of each class.
        train: one training set a seed.
        validation: for each of them, rows that are not in it.
        test: for the reported figures only.
    """

    word_ids: tuple[int, ...]
    train: tuple[Records, ...]
    validation: tuple[Records, ...]
    test: Records


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise InvalidArgument(f"{path} is not there: put the public data set into {path.parent}.")
    return path


def read_trec(path: Path) -> Rows:
    """Questions and labels of a file whose lines are `label question`, in Latin-1."""
    # Not splitlines: it takes a character of Latin-1 for the end of a line.
    lines = _existing(path).read_text(encoding="latin-1").rstrip("\n").split("\n")
    rows = [line.split(" ", 1) for line in lines]
    return [text for _, text in rows], [int(label) for label, _ in rows]


def sst2(folder: Path = FOLDER / "sst2", length: int = finetune_sst2.LENGTH) -> Task:
    """Sentences of film reviews, good or bad, as in `examples/finetune_sst2.py`."""
    train, test = (
        finetune_sst2.read_tsv(_existing(folder / name)) for name in ("train.tsv", "test.tsv")
    )
    return Task(finetune_sst2.PROMPT, finetune_sst2.WORDS, length, train, test)


def trec(folder: Path = FOLDER / "trec", length: int = 32) -> Task:
    """Questions, by what they ask for. The words are the classes' names in plain English."""
    words = (" description", " entity", " abbreviation", " person", " place", " number")
    train, test = (read_trec(folder / name) for name in ("train.txt", "test.txt"))
    return Task("{} Topic:", words, length, train, test)


TASKS = {"SST-2": sst2, "TREC": trec}


def _left_out(rows: np.ndarray, total: int, seed: int) -> np.ndarray:
    """Up to `VALIDATION` rows that are not among `rows`, in random order."""
    others = np.setdiff1d(np.arange(total), rows)
    return np.random.default_rng(seed).permutation(others)[:VALIDATION]


def tokenise(
    task: Task, tokenizer: Any, per_class: int = PER_CLASS, seeds: Sequence[int] = SEEDS
) -> Problem:
    """The problem in tokens, with a training and a validation set for each seed."""

    def encoded(texts: Sequence[str], labels: Sequence[int], length: int) -> Records:
        return finetune_sst2.encode(tokenizer, texts, labels, task.words, length, task.prompt)

    def part(rows: np.ndarray, length: int) -> Records:
        texts, labels = task.train
        return encoded([texts[row] for row in rows], [labels[row] for row in rows], length)

    labels = task.train[1]
    chosen = [finetune_sst2.choose(labels, per_class, seed) for seed in seeds]
    return Problem(
        word_ids=tuple(finetune_sst2.word_tokens(tokenizer, task.words)),
        train=tuple(part(rows, task.length) for rows in chosen),
        validation=tuple(
            part(_left_out(rows, len(labels), seed), 2 * task.length)
            for rows, seed in zip(chosen, seeds, strict=True)
        ),
        test=encoded(*task.test, 2 * task.length),
    )


def made(tokenizer: Any) -> dict[str, Problem]:
    """Both problems, from the texts."""
    return {name: tokenise(task(), tokenizer) for name, task in TASKS.items()}


def save(path: str | Path, problems: dict[str, Problem] | None = None) -> None:
    """Write problems as one compressed file of small integers; both of this page by default."""
    if problems is None:
        problems = made(load_tokenizer())
    arrays = {}
    for name, problem in problems.items():
        arrays[f"{name}/word_ids"] = np.array(problem.word_ids, np.int32)
        sets = {"test": problem.test}
        for part in _PARTS:
            sets |= {f"{part}/{seed}": each for seed, each in enumerate(getattr(problem, part))}
        for place, records in sets.items():
            for column, dtype in _STORED.items():
                arrays[f"{name}/{place}/{column}"] = records[column].numpy().astype(dtype)
    np.savez_compressed(path, **arrays)


def load(path: str | Path) -> dict[str, Problem]:
    """The problems that `save` wrote, as 64-bit integers again: PyTorch takes indices so."""
    with np.load(path) as arrays:

        def records(place: str) -> Records:
            return {
                column: torch.from_numpy(arrays[f"{place}/{column}"].astype(np.int64))
                for column in _STORED
            }

        def sets(place: str) -> tuple[Records, ...]:
            seeds = sum(key.startswith(f"{place}/") for key in arrays.files) // len(_STORED)
            return tuple(records(f"{place}/{seed}") for seed in range(seeds))

        names = [key.removesuffix("/word_ids") for key in arrays.files if key.endswith("/word_ids")]
        return {
            name: Problem(
                word_ids=tuple(int(token) for token in arrays[f"{name}/word_ids"]),
                train=sets(f"{name}/train"),
                validation=sets(f"{name}/validation"),
                test=records(f"{name}/test"),
            )
            for name in names
        }


def load_tokenizer() -> Any:
    """The tokenizer of the model's file, without the model."""
    from transformers import AutoTokenizer

    file = finetune_sst2.find_gguf()
    return AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)


def prompt_lengths(task: Task, tokenizer: Any) -> dict[str, np.ndarray]:
    """Tokens of every prompt, of the training and of the test file."""

    def lengths(texts: Sequence[str]) -> np.ndarray:
        prompts = [task.prompt.format(text.strip()) for text in texts]
        return np.array(
            [len(ids) for ids in tokenizer(prompts, add_special_tokens=False)["input_ids"]]
        )

    return {"train": lengths(task.train[0]), "test": lengths(task.test[0])}


def main() -> None:
    parser = argparse.ArgumentParser(description="Tokenise the problems of benchmarks.finetune.")
    parser.add_argument("path", type=Path, help="the .npz to write")
    given = parser.parse_args()
    tokenizer = load_tokenizer()
    table = Table("problem", "part", "prompts", "median", "99%", "longest", "fixed", "cut")
    for name, task in TASKS.items():
        described = task()
        for part, lengths in prompt_lengths(described, tokenizer).items():
            quantiles = [f"{np.quantile(lengths, at):.0f}" for at in (0.5, 0.99, 1)]
            fixed = described.length * (1 if part == "train" else 2)
            cut = f"{int((lengths > fixed).sum()):,}"
            table.add_row(name, part, f"{len(lengths):,}", *quantiles, str(fixed), cut)
    given.path.parent.mkdir(parents=True, exist_ok=True)
    save(given.path, made(tokenizer))
    console = Console()
    console.print(table)
    console.print(f"{given.path}: {given.path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
