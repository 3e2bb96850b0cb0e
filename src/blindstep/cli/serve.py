"""`blindstep serve`: the feedback service, its tokens, its schema and its back-up drill."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from blindstep.errors import InvalidArgument

_LEAST_TOKEN = 32

serve = typer.Typer(
    invoke_without_command=True,
    help="Start the feedback service: better from votes, privately, over HTTP.",
)

Database = Annotated[
    str | None,
    typer.Option(help="sqlite:///PATH or postgresql://... Default: blindstep.db in this folder."),
]
KeyFile = Annotated[
    str | None, typer.Option(help="The key file; made if it is not there. Default: blindstep.key.")
]


def _settings(database: str | None, key_file: str | None, **more: Any) -> Any:
    """The settings of the environment, with what was given on the command line."""
    try:
        from blindstep.serve.service import Settings
    except ModuleNotFoundError as error:
        raise InvalidArgument(
            f"the service needs {error.name}: pip install '.[serve]' in a copy of the repository."
        ) from None
    from dataclasses import replace

    given = {"database": database, "key_file": key_file, **more}
    chosen = {name: value for name, value in given.items() if value is not None}
    return replace(Settings.from_environment(), **chosen)


@contextlib.contextmanager
def _opened(settings: Any, *, migrate: bool = True) -> Iterator[tuple[Any, Any]]:
    """The database and the keys. An empty one gets its tables; with `migrate`, so does an older one."""
    from blindstep.serve.database import Database as Tables

    secrets = settings.secrets(make=True)
    tables = Tables(settings.database)
    try:
        with tables.explained():
            if migrate or tables.is_empty():
                tables.migrate()
            tables.check(secrets)
        yield tables, secrets
    finally:
        tables.close()


@serve.callback()
def start(
    context: typer.Context,
    database: Database = None,
    key_file: KeyFile = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8000,
    workers: Annotated[int, typer.Option(min=1, help="Processes; they meet in the database.")] = 1,
    origin: Annotated[
        list[str] | None,
        typer.Option(help="Pages of this origin may send answers; may be given several times."),
    ] = None,
    secure_cookies: Annotated[
        bool | None, typer.Option(help="For a dashboard that is served over https.")
    ] = None,
    proxy: Annotated[
        list[str] | None,
        typer.Option(help="A network whose X-Forwarded-For is believed, such as 10.0.0.0/8."),
    ] = None,
    admin_token_file: Annotated[
        str | None, typer.Option(help="Where the first admin token goes; never to the output then.")
    ] = None,
    log_level: Annotated[
        str | None, typer.Option(help="debug, info, warning or error. Default: info.")
    ] = None,
) -> None:
    """Start the feedback service: better from votes, privately, over HTTP.

    Without options: SQLite and a key file in this folder, on this machine only. It prints the
    dashboard's address and, the first time, an admin token, or where it was written.
    """
    if context.invoked_subcommand is not None:
        return
    origins = None if origin is None else tuple(origin)
    proxies = None if proxy is None else tuple(proxy)
    more = {"origins": origins, "secure_cookies": secure_cookies, "proxies": proxies}
    settings = _settings(database, key_file, log_level=log_level, **more)
    _require_port(host, port)
    with _opened(settings, migrate=False) as (tables, secrets):
        from blindstep.serve.access import Access
        from blindstep.serve.workers import run

        settings.provider(secrets)  # refused here, in one line, if it cannot work
        said = _first_token(Access(tables, secrets), settings.key_file, admin_token_file)
    print(f"Dashboard    http://{host}:{port}/")
    print(f"Admin token  {said}")
    run(settings, host, port, workers)


def _first_token(access: Any, key_file: str, file: str | None) -> str:
    """Make the first admin token, if there is none yet; says where it is.

    It is that of `file`, if there is one: a secret that whoever runs the container has put there. Else
    it is written to `file`; only a terminal is shown it, since what a container prints is kept in logs.
    """
    from blindstep.serve.administration import put_secret

    if access.has_admin():
        return "as before (blindstep serve token makes a new one)"
    if file is None and sys.stdout.isatty():
        return (
            f"{access.create('admin', None, 'made at the first start')[1]}\n"
            f"             It is not shown again. Back up {key_file}, apart from the database."
        )
    file = file or f"{key_file}.admin"
    if os.path.exists(file):
        given = Path(file).read_text(encoding="ascii").strip()
        if len(given) < _LEAST_TOKEN:
            raise InvalidArgument(
                f"{file}: an admin token has at least {_LEAST_TOKEN} random characters."
            )
        access.create("admin", None, "from a file", given)
    else:
        put_secret(file, access.new_token("admin"))
        access.create("admin", None, "made at the first start", Path(file).read_text().strip())
    return f"in {file}: keep it, and delete the file"


def _require_port(host: str, port: int) -> None:
    """Refuse a place where nothing can listen, before a token is made that nobody would see again."""
    try:
        kind, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(kind) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(address)
    except OSError as error:
        raise InvalidArgument(
            f"cannot listen on {host}:{port} ({error.strerror}): give another --port or --host."
        ) from None


@serve.command()
def token(
    scope: Annotated[str, typer.Option(help="admin, viewer, site or metrics.")] = "admin",
    study: Annotated[str | None, typer.Option(help="The study of a site token.")] = None,
    label: Annotated[str, typer.Option(help="A word to recognise it by.")] = "",
    database: Database = None,
    key_file: KeyFile = None,
) -> None:
    """Make a new token and print it. Needs the key file, so only the operator can."""
    known = ("admin", "viewer", "site", "metrics")
    if scope not in known or (scope == "site") != (study is not None):
        raise InvalidArgument("--scope admin, viewer or metrics, or --scope site with --study ID.")
    with _opened(_settings(database, key_file)) as (tables, secrets):
        from blindstep.serve import administration
        from blindstep.serve.access import Access
        from blindstep.serve.studies import Studies

        if study is not None:
            Studies(tables, secrets).row(study)  # refused if there is none
        administration.note(tables, administration.COMMAND, "make_token", study, scope)
        print(Access(tables, secrets).create(scope, study, label)[1])


@serve.command()
def audit(
    lines: Annotated[int, typer.Option(min=1, help="How many, the newest first.")] = 50,
    database: Database = None,
    key_file: KeyFile = None,
) -> None:
    """Show who did what, when."""
    with _opened(_settings(database, key_file)) as (tables, _):
        from blindstep.serve import administration

        for line in administration.lines(tables, lines):
            when = datetime.fromtimestamp(line["at"], UTC).isoformat(timespec="seconds")
            who = f"{line['who']} ({line['label']})" if line["label"] else line["who"]
            print(
                f"{when}  {who}  {line['action']} {line['study'] or ''} {line['detail']}".rstrip()
            )


@serve.command()
def forget(
    person: Annotated[str, typer.Argument(help="The person, as your site names them.")],
    database: Database = None,
    key_file: KeyFile = None,
) -> None:
    """Delete what a person has said in open windows; what was released cannot be taken back."""
    with _opened(_settings(database, key_file)) as opened:
        from blindstep.serve import administration
        from blindstep.serve.studies import Studies

        administration.note(opened[0], administration.COMMAND, "forget")
        number = administration.forget_person(Studies(*opened), person)
    print(
        f"Deleted from the open windows of {number} studies. That they were asked stays, as a keyed "
        "hash, until a study ends; what was released holds no more of them than was promised."
    )


@serve.command("sign-out")
def sign_out(database: Database = None, key_file: KeyFile = None) -> None:
    """Sign everybody out of the dashboard, at once. Tokens stay."""
    with _opened(_settings(database, key_file)) as opened:
        from blindstep.serve import administration
        from blindstep.serve.sessions import Sessions

        administration.note(opened[0], administration.COMMAND, "sign_out")
        number = Sessions(*opened).close_all()
    print(f"Ended {number} sessions.")


@serve.command("rotate-key")
def rotate_key(database: Database = None, key_file: KeyFile = None) -> None:
    """Take a new key for what comes; no study may be open. All tokens end, and a new one is made."""
    settings = _settings(database, key_file)
    if os.environ.get("BLINDSTEP_KEY"):
        raise InvalidArgument("the key is in BLINDSTEP_KEY: take it from a file to rotate it.")
    fresh = f"{settings.key_file}.new"
    with _opened(settings) as (tables, _):
        from blindstep.serve import administration, keys
        from blindstep.serve.access import Access

        secrets = keys.from_file(fresh, make=True)
        administration.note(tables, administration.COMMAND, "rotate_key")
        administration.rotate_key(tables, secrets)
        os.replace(settings.key_file, f"{settings.key_file}.old")
        os.replace(fresh, settings.key_file)
        said = _first_token(Access(tables, secrets), settings.key_file, None)
    print(f"Admin token  {said}")
    print(f"Old key      {settings.key_file}.old: delete it with the back-ups that it opens.")


@serve.command()
def migrate(database: Database = None, key_file: KeyFile = None) -> None:
    """Make the tables, or bring them to this version's schema; an unknown schema is refused."""
    with _opened(_settings(database, key_file)) as (tables, _):
        print(f"schema {tables.revision()}")


@serve.command("hand-over")
def hand_over_study(
    study: Annotated[str, typer.Argument(help="The study: its identifier, as in its address.")],
    to: Annotated[str, typer.Option(help="The new folder to write.")],
    about: Annotated[
        str | None, typer.Option(help="A JSON file with what only you know, as for hand-over.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="An Ed25519 key (PEM) that signs it.")] = None,
    database: Database = None,
    key_file: KeyFile = None,
) -> None:
    """Write a folder about a finished study to give away; nothing secret."""
    from blindstep.cli.hand_over import read_answers, say_what_is_open
    from blindstep.insight.hand_over import hand_over

    with _opened(_settings(database, key_file)) as opened:
        from blindstep.serve.studies import Studies

        studies = Studies(*opened)
        name, result = studies.row(study)["name"], studies.result(study)
    answers = {"name": str(name), **(read_answers(about) or {})}
    print(f"{hand_over(result, to, about=answers, key=key)}: the study, to give away.")
    say_what_is_open(answers)


@serve.command()
def restored(
    lost: Annotated[
        list[str] | None,
        typer.Option(
            help="COHORT=MU: what studies took that were made after the copy. Once for each cohort."
        ),
    ] = None,
    database: Database = None,
    key_file: KeyFile = None,
) -> None:
    """Say that the database was restored from a copy: running studies pay for what may be lost.

    Once for each time that this copy was restored, before the service is started.
    """
    charges = dict(_charge(given) for given in lost or ())
    with _opened(_settings(database, key_file)) as opened:
        from blindstep.serve.studies import Studies

        going_on = Studies(*opened).restored(charges)
    if not going_on:
        print("No study goes on: none was open, or their budgets had no room and they are closed.")
        return
    print(
        f"{len(going_on)} studies go on, charged again. An open study whose budget has no room for "
        "that is closed."
    )


def _charge(given: str) -> tuple[str, float]:
    cohort, _, mu = given.rpartition("=")
    try:
        return cohort, float(mu)
    except ValueError:
        raise InvalidArgument(f"--lost {given}: write COHORT=MU, such as readers=0.24.") from None
