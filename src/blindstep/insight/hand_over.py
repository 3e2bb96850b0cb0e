"""One folder about a release that can be given away: to a regulator, a hub, a registry, a colleague.

    bs.hand_over(result, "handed-over", about={"name": "Commuting times", "justification": "..."})
    blindstep hand-over RUN --to FOLDER --about about.json
    blindstep hand-over check FOLDER

| file | for |
|---|---|
| `README.md` | a model hub: a model card with Hugging Face's metadata |
| `registry.yaml` | OpenDP's Deployments Registry |
| `hazards.md` | a data-protection officer: the hazards of NIST SP 800-226, our answers, their tests |
| `bom.json` | an inventory of software: CycloneDX, with versions |
| `report.html` | everybody: the guarantee in words, numbers and pictures |
| `statement.json`, `plan.json` | programs |
| `parameters.npz` or `tuned.json` | use: the answer |
| `files.json`, `signature.json` | checking that nothing was changed |
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from blindstep.errors import InvalidArgument
from blindstep.insight import hazards
from blindstep.insight.audit import Audit
from blindstep.insight.certificate import Certificate
from blindstep.insight.hand_over_documents import (
    About,
    bill_of_materials,
    model_card,
    registry_record,
    to_yaml,
)
from blindstep.insight.hand_over_seal import seal
from blindstep.insight.report import render
from blindstep.insight.report_content import Content, of_result, of_run_directory
from blindstep.ledger import data_ledger
from blindstep.run.result import Reportable

_TITLE = "A private run"


def hand_over(
    result: Reportable,
    folder: str | os.PathLike[str],
    *,
    about: Mapping[str, Any] | None = None,
    key: str | os.PathLike[str] | None = None,
    public_utility: Mapping[str, float | str] | None = None,
    ledger: str | os.PathLike[str] | None = None,
    certificate: Certificate | None = None,
    audit: Audit | None = None,
) -> Path:
    """Write a folder about a finished run that can be given away: it holds public quantities only.

        bs.hand_over(result, "handed-over", about={"name": "Commuting times", "curators": ["The city"]})

    What only you know (`hand_over_documents.QUESTIONS`) is asked for and never invented: a question
    without an answer stays in its place as "NOT ANSWERED".

    Args:
        result: what `minimize`, `tune`, `blindstep.torch.minimize` or an `Optimizer` gave.
        folder: a folder that does not exist yet, or is empty.
        about: your answers by name: name, curators, description, intended_use, justification and so on.
        key: a file with an Ed25519 key in PEM that signs the list of files. If there is no such file,
            a new key is written to it, readable by its owner only.
        public_utility: names and values that you computed *on public data*.
        ledger: the ledger of these records, or a run directory, whose spending is shown.
        certificate: what `certificate` measured at the answer.
        audit: what `audit` found for the plan of this run.

    Returns:
        The path of the folder.
    """
    answers = About(about, _TITLE, _today())
    content = of_result(result, answers["name"], public_utility, ledger, certificate, audit)
    target = _new_folder(folder)
    if content.params is not None:
        np.savez(target / "parameters.npz", allow_pickle=False, **content.params)
    elif save := getattr(result, "save", None):
        save(target / "tuned.json")
    return _written(content, answers, target, key)


def hand_over_run_directory(
    directory: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    about: Mapping[str, Any] | None = None,
    key: str | os.PathLike[str] | None = None,
    ledger: str | os.PathLike[str] | None = None,
    parameters: str | os.PathLike[str] | None = None,
) -> Path:
    """The same of a run directory. `parameters` is the params.npz that `blindstep train` wrote."""
    answers = About(about, f"Run {os.path.basename(os.path.abspath(directory))}", _today())
    content = of_run_directory(directory, title=answers["name"], ledger=ledger)
    if not content.finished:
        raise InvalidArgument(
            f"the run in {directory} is at step {content.steps_done:,} of {content.steps:,}: finish it "
            "first. The same command goes on where it was."
        )
    params = None if parameters is None else _parameters(parameters)
    target = _new_folder(folder)
    if params is not None:
        np.savez(target / "parameters.npz", allow_pickle=False, **params)
    return _written(content, answers, target, key)


def open_questions(about: Mapping[str, Any] | None) -> dict[str, str]:
    """The questions that these answers leave open."""
    return About(about, _TITLE, _today()).open


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def _parameters(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as found:
            return {name: found[name] for name in found.files}
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"{os.fspath(path)} holds no parameters that can be read.") from error


def _new_folder(folder: str | os.PathLike[str]) -> Path:
    """An empty folder; refused where it is in a run directory, or holds something."""
    target = Path(folder)
    secret = data_ledger.secret_directory(target / "report.html")
    if secret is not None:
        raise InvalidArgument(
            f"{target} is in the run directory {secret}, which holds the noise key: hand over a folder "
            "outside of it."
        )
    try:
        target.mkdir(parents=True, exist_ok=True)
        if any(target.iterdir()):
            raise InvalidArgument(f"{target} is not empty: give a new folder.")
    except OSError as error:
        raise InvalidArgument(
            f"{target} cannot be made ({error.strerror}): give another folder."
        ) from error
    return target


def _written(
    content: Content, about: About, folder: Path, key: str | os.PathLike[str] | None
) -> Path:
    answer = sorted(path.name for path in folder.iterdir())
    texts = {
        "README.md": model_card(content, about, answer),
        "registry.yaml": to_yaml(registry_record(content, about)),
        "hazards.md": hazards.table(content),
        "bom.json": _json(bill_of_materials(content, about)),
        "report.html": render(content),
        "statement.json": _json(content.privacy.to_dict()),
        "plan.json": content.plan.to_json() + "\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    seal(folder, f"blindstep {content.versions['blindstep']}", key)
    return folder


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2, allow_nan=False) + "\n"
