"""What a handed-over folder says of a release: for a registry, a model hub, a software inventory.

All of it is made of public quantities (`report_content`) and of what the curator answered. A question
that nobody answered stays in its place, as a question: nothing is invented.
"""

from __future__ import annotations

import difflib
import json
import re
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from blindstep.errors import InvalidArgument
from blindstep.insight.report_content import Content
from blindstep.insight.report_sections import PAPER
from blindstep.planning.statement import SEEDED, round_up, secrecy_sentence, unit_sentence
from blindstep.private.accounting import PERSON

# What only the curator knows, and how it is asked for. `authors` and `curators` are lists.
QUESTIONS = {
    "name": "What is the data product called?",
    "curators": "Who publishes it?",
    "description": "What is it, in a few sentences?",
    "intended_use": "What is it meant to be used for?",
    "region": "Which region do the data describe, or which region's laws apply?",
    "sector": "One of: Technology, Healthcare, Education, Government, Energy, Finance.",
    "publication_date": "When is it published (YYYY-MM-DD)?",
    "data_domain": "Which data sets were possible: who could have been in them, and with what?",
    "tuning": "What was looked at or tried on the data before this run, and was it paid for?",
    "future_releases": "Will the same data be used again, and how is that accounted for?",
    "justification": "Why this unit, this epsilon and this delta? Who decided, and how was it checked?",
    "sources": "Where can one read more?",
    "authors": "Who filled in this record?",
    "license": "Under which license is the answer published (as a Hugging Face identifier)?",
}
_LISTS = ("curators", "authors")
# Questions that may stay open without a word in their place.
_OPTIONAL = ("sector", "sources", "license")


class About:
    """The curator's answers; for a question without one, the question."""

    def __init__(self, answers: Mapping[str, Any] | None, title: str, today: str) -> None:
        self._given = {"name": title, "publication_date": today, **(answers or {})}
        for name, value in self._given.items():
            if name not in QUESTIONS:
                near = difflib.get_close_matches(name, QUESTIONS, n=1)
                remedy = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(QUESTIONS)}."
                raise InvalidArgument(f"about has no {name!r}: {remedy}")
            texts = value if name in _LISTS and not isinstance(value, str) else [value]
            if not texts or not all(isinstance(text, str) and text for text in texts):
                raise InvalidArgument(
                    f"about: {name} must be a text, or a list of texts for {' and '.join(_LISTS)}."
                )

    def __getitem__(self, name: str) -> str:
        """The answer as one text."""
        return ", ".join(self.several(name))

    def several(self, name: str) -> list[str]:
        """The answer as texts."""
        found = self._given.get(name, f"NOT ANSWERED: {QUESTIONS[name]}")
        return [found] if isinstance(found, str) else [str(each) for each in found]

    def get(self, name: str) -> str | None:
        """The answer, if there is one."""
        return self[name] if name in self._given else None

    @property
    def open(self) -> dict[str, str]:
        """The questions that are not answered."""
        return {
            name: question
            for name, question in QUESTIONS.items()
            if name not in self._given and name not in _OPTIONAL
        }


def registry_record(content: Content, about: About) -> dict[str, Any]:
    """The record for OpenDP's Deployments Registry, of its third tier."""
    plan, privacy = content.plan, content.privacy
    basic = {
        "name": about["name"],
        "data_curators": about.several("curators"),
        "intended_use": about["intended_use"],
        "data_product_type": "Machine learning model",
        "data_product_region": about["region"],
        "description": about["description"],
        "publication_date": about["publication_date"],
    }
    if about.get("sector"):
        basic["data_product_sector"] = about["sector"]
    administrative: dict[str, Any] = {"registry_authors": about.several("authors")}
    if about.get("sources"):
        administrative["sources"] = about["sources"]
    rows = [
        f"mu = {round_up(privacy.mu)} of Gaussian differential privacy (exact), which this schema has "
        f"no field for; rho is zCDP, mu^2 / 2.",
        f"At delta = {round_up(privacy.delta)}, epsilon = {round_up(privacy.epsilon)}. The probability "
        f"that the privacy loss exceeds epsilon is up to {round_up(privacy.exceeds, 2)}.",
        f"All this holds up to a total variation of {round_up(privacy.slack, 2)}"
        + (
            f" and the {round_up(privacy.secrecy, 2)} that secret batches cost."
            if privacy.secrecy
            else "."
        ),
        *([SEEDED] if privacy.seeded else []),
    ]
    return {
        "url_slug": slug(f"{about['name']} {about['publication_date'][:4]}"),
        "status": "Draft",
        "tier": 3,
        "deployment": {
            "basic": basic,
            "dp_variant": {
                "variant_name": "Zero-concentrated DP",
                "data_domain": about["data_domain"],
                "unprotected_quantities": (
                    f"The {'planned ' if privacy.windows else ''}number of records ({plan.records:,}), "
                    "the plan of the run, its start and its public key. None of them is made from a "
                    "record by the library; a start that the curator took from the data is not covered."
                ),
            },
            "privacy_loss": {
                "privacy_unit": privacy.unit,
                "privacy_unit_details": (
                    f"{unit_sentence(privacy.unit, privacy.neighbours, privacy.windows)} "
                    f"({privacy.neighbours} neighbours)"
                ),
                "privacy_parameters": {
                    "epsilon": float(round_up(privacy.epsilon)),
                    "delta": float(round_up(privacy.delta)),
                    "rho": float(round_up(privacy.mu**2 / 2)),
                },
                "privacy_parameters_details": "\n".join(f"- {row}" for row in rows),
            },
            "deployment_model": {
                "model_name": "Central",
                "actors": (
                    "- The curator runs blindstep, holds the records and the noise key, and is trusted "
                    "with both; so is anyone who controls that machine.\n"
                    "- Whoever sees the release is not trusted: they may see every noisy vector of "
                    "every step, know all other records, and have chosen loss and plan."
                    + (f" {secrecy_sentence(privacy.secrecy)}" if privacy.secrecy else "")
                ),
                # A study releases after every window, to people who come and go.
                "release_type": "Many releases" if privacy.windows else "One release",
                "release_type_details": about["future_releases"],
                "data_source_type": "Dynamic" if privacy.windows else "Static",
                "access_type": "Non-interactive",
            },
            "accounting": {
                "post_processing": (
                    "Parameters, history, report and this record are functions of released vectors "
                    "alone."
                ),
                "composition": _composition(content),
            },
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": about["tuning"],
                "mechanisms": _mechanisms(content),
                "justification": about["justification"],
            },
            "administrative": administrative,
        },
    }


def _composition(content: Content) -> str:
    plan, privacy = content.plan, content.privacy
    parts = ", ".join(round_up(terms.mu(), 4) for terms in plan.all_terms)
    said = (
        f"Gaussian differential privacy: mus add in squares, exactly. This run has parts of "
        f"mu {parts}; in all {round_up(privacy.mu, 4)}. {'; '.join(privacy.enforced)}."
    )
    if privacy.mu > plan.mu * (1 + 1e-9):
        said += (
            " That is more than this run has: it was chosen among candidates, and their runs and the "
            "choice are paid for as well."
        )
    if content.spending is None:
        return f"{said} No ledger was handed over: other runs on the same people are not counted."
    spent = content.spending["mu"]
    return f"{said} All runs of the ledger on the same people: mu {round_up(spent, 4)}."


def _mechanisms(content: Content) -> str:
    return "\n".join(
        f"- {line}"
        for line in (
            f"Discrete Gaussian noise on clipped sums ({content.plan.mechanism}), by the library "
            f"blindstep {content.versions['blindstep']}.",
            f"Floating point: {content.privacy.arithmetic}.",
            "Random numbers: ChaCha20 under a 256-bit key of the operating system; no draw is used "
            "twice.",
            "Timing: which operations run does not depend on records; how long a loss takes may, and "
            "is not protected. The release is not interactive.",
            "Each claim, and the test that holds it: hazards.md.",
        )
    )


def model_card(content: Content, about: About, files: Sequence[str]) -> str:
    """A model card with Hugging Face's metadata and sections."""
    plan, privacy = content.plan, content.privacy
    about_license = about.get("license")
    metadata: dict[str, Any] = {
        **({"license": about_license} if about_license else {}),
        "library_name": "blindstep",
        "tags": ["differential-privacy", "zeroth-order-optimization", "blindstep"],
    }
    shown = content.public_utility
    measured = (
        "\n".join(f"- {name}: {value}" for name, value in shown.items())
        if shown
        else "Nothing was measured on public data. A figure from private records would be a release of "
        "its own."
    )
    data = "\n".join(f"- {said}" for said in privacy.sentences())
    made_of = "gradients" if plan.differentiates else "values"
    many = "people" if privacy.unit.startswith(PERSON) else "records"
    return f"""---
{to_yaml(metadata)}---

# {about["name"]}

{about["description"]}

## Model details

- **Published by:** {about["curators"]}
- **Parameters:** {plan.dim:,}, learned from {made_of} of a loss alone
- **Files:** {", ".join(f"`{name}`" for name in files)}

## Uses

{about["intended_use"]}

**Out of scope:** what the answer says about one person. Nothing in it was meant to, and noise hides it.

## Bias, risks and limitations

Clipping and noise weigh more on small groups. `hazards.md` lists what is protected and what is not.

## How to get started

{_start(files)}

## Training

- **Data:** {plan.records:,} {many}. {about["data_domain"]}
- **Procedure:** {content.steps:,} noisy steps, method `{plan.method}`; every number is in `plan.json`.
- **Tuning:** {about["tuning"]}

## Evaluation

{measured}

## Privacy

{data}

## Citation

{PAPER}
"""


def _start(files: Sequence[str]) -> str:
    if "parameters.npz" in files:
        code = 'import numpy as np\n\nparams = dict(np.load("parameters.npz"))'
    elif "tuned.json" in files:
        code = (
            "import blindstep.torch\n\n"
            'blindstep.torch.load(model, "tuned.json")  # the base model, as it was before the run'
        )
    else:
        return "The parameters are not in this folder."
    return f"```python\n{code}\n```"


def bill_of_materials(content: Content, about: About) -> dict[str, Any]:
    """What made the model, with versions: a machine-learning bill of materials (CycloneDX 1.6)."""
    privacy, libraries = content.privacy, ("blindstep", "jax", "numpy", "scipy", "equinox")
    made = slug(about["name"])
    said = f"({round_up(privacy.epsilon)}, {round_up(privacy.delta)})-differentially private"
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid4()}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.now(UTC).strftime(
                "%Y-%m-%dT00:00:00Z"
            ),  # a day, and no time of day
            "component": {
                "type": "machine-learning-model",
                "bom-ref": made,
                "name": about["name"],
                "description": about["description"],
                "modelCard": {
                    "modelParameters": {"task": "private optimization from function values"},
                    "considerations": {
                        "useCases": [about["intended_use"]],
                        "technicalLimitations": ["Noise for privacy limits accuracy."],
                        "ethicalConsiderations": [
                            {
                                "name": "Privacy of the people in the data",
                                "mitigationStrategy": said,
                            }
                        ],
                    },
                },
                "properties": [
                    {"name": "blindstep:mu", "value": round_up(privacy.mu)},
                    {"name": "blindstep:neighbours", "value": privacy.neighbours},
                    {"name": "blindstep:unit", "value": privacy.unit},
                ],
            },
        },
        "components": [
            {
                "type": "library",
                "bom-ref": f"pkg:pypi/{name}@{version(name)}",
                "name": name,
                "version": version(name),
                "purl": f"pkg:pypi/{name}@{version(name)}",
            }
            for name in libraries
        ],
        "dependencies": [
            {
                "ref": made,
                "dependsOn": [f"pkg:pypi/{name}@{version(name)}" for name in libraries],
            }
        ],
    }


def slug(name: str) -> str:
    """A name as part of an address."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "a-private-run"


def to_yaml(value: Mapping[str, Any], indent: str = "") -> str:
    """Mappings, lists, texts and numbers as YAML: texts of one line quoted, others as blocks."""
    lines: list[str] = []
    for key, each in value.items():
        if isinstance(each, Mapping):
            lines.append(f"{indent}{key}:\n{to_yaml(each, indent + '  ')}")
        elif isinstance(each, list):
            items = "".join(
                f"{indent}  - {json.dumps(item, ensure_ascii=False)}\n" for item in each
            )
            lines.append(f"{indent}{key}:\n{items}")
        elif isinstance(each, str) and "\n" in each:
            block = "".join(f"{indent}  {line}\n" for line in each.splitlines())
            lines.append(f"{indent}{key}: |-\n{block}")
        else:
            lines.append(f"{indent}{key}: {json.dumps(each, ensure_ascii=False)}\n")
    return "".join(lines)
