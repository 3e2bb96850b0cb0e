"""The command `hand-over`: a folder about a finished run to give away, and the check of one."""

from __future__ import annotations

import json
import os
from typing import Annotated, Any

import typer

from blindstep.cli import AsJson, print_json
from blindstep.errors import InvalidArgument
from blindstep.insight.hand_over import hand_over_run_directory, open_questions
from blindstep.insight.hand_over_seal import check
from blindstep.ledger.files import read_file

_CHECK = "check"


def hand_over(
    run: Annotated[
        str,
        typer.Argument(metavar="RUN", help="A run directory; or the word check, then a folder."),
    ],
    folder: Annotated[str | None, typer.Argument(help="With check: the folder to check.")] = None,
    to: Annotated[str | None, typer.Option(help="The new folder to write.")] = None,
    about: Annotated[
        str | None,
        typer.Option(help="A JSON file with what only you know: name, curators, justification ..."),
    ] = None,
    parameters: Annotated[
        str | None, typer.Option(help="The params.npz that `blindstep train` wrote.")
    ] = None,
    ledger: Annotated[
        str | None, typer.Option(help="The ledger, where the run did not keep its own.")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            help="An Ed25519 key (PEM) that signs the list of files; made if it is not there."
        ),
    ] = None,
    signer: Annotated[
        str | None, typer.Option(help="With check: the fingerprint that must have signed it.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a folder about a finished run to give away, or check one; nothing secret.

    blindstep hand-over RUN --to FOLDER --about about.json --key signing.pem
    blindstep hand-over check FOLDER
    """
    if folder is not None and run != _CHECK:
        raise InvalidArgument(
            f"give the new folder as --to {folder}; to check one: check {folder}."
        )
    if folder is not None:
        found = check(folder, signer)
        if as_json:
            print_json({"files": found.files, "list": found.list_hash, "signer": found.signer})
        else:
            print(f"{folder}: {found}")
        return
    if to is None:
        raise InvalidArgument(f"say where to: blindstep hand-over {run} --to FOLDER.")
    answers = read_answers(about)
    path = hand_over_run_directory(
        run, to, about=answers, key=key, ledger=ledger, parameters=parameters
    )
    if as_json:
        print_json({"folder": str(path), "not_answered": open_questions(answers)})
        return
    print(f"{path}: {', '.join(sorted(os.listdir(path)))}. It holds nothing secret.")
    say_what_is_open(answers)


def say_what_is_open(answers: dict[str, Any] | None) -> None:
    """Print the questions that nobody has answered, as a file to fill in."""
    unanswered = open_questions(answers)
    if unanswered:
        print("Not answered yet (give them in a JSON file as --about):")
        print(json.dumps(unanswered, indent=2))


def read_answers(path: str | None) -> dict[str, Any] | None:
    """The answers in a JSON file, if there is one."""
    if path is None:
        return None
    try:
        found = json.loads(read_file(path))
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"{path} cannot be read as JSON ({error}).") from error
    if not isinstance(found, dict):
        raise InvalidArgument(f"{path} must hold a JSON object of answers by name.")
    return found
