"""`blindstep serve`: the feedback service, its tokens, its schema and its back-up drill."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from blindstep.errors import InvalidArgument

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
            f"the service needs {error.name}: pip install 'blindstep[serve]'."
        ) from None
    from dataclasses import replace

    given = {"database": database, "key_file": key_file, **more}
    chosen = {name: value for name, value in given.items() if value is not None}
    return replace(Settings.from_environment(), **chosen)


@contextlib.contextmanager
def _opened(settings: Any) -> Iterator[tuple[Any, Any]]:
    """The database, with its schema made or brought up to date, and the keys."""
    from blindstep.serve.database import Database as Tables

    secrets = settings.secrets(make=True)
    tables = Tables(settings.database)
    try:
        with tables.explained():
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
) -> None:
    """Start the feedback service: better from votes, privately, over HTTP.

    Without options: SQLite and a key file in this folder, on this machine only. It prints the
    dashboard's address and, the first time, an admin token.
    """
    if context.invoked_subcommand is not None:
        return
    origins = None if origin is None else tuple(origin)
    settings = _settings(database, key_file, origins=origins, secure_cookies=secure_cookies)
    _require_port(host, port)
    with _opened(settings) as (tables, secrets):
        from blindstep.serve.access import Access

        token = Access(tables, secrets).first_admin()
    print(f"Dashboard    http://{host}:{port}/")
    if token is None:
        print("Admin token  as before (blindstep serve token makes a new one)")
    else:
        print(f"Admin token  {token}")
        print(
            f"             It is not shown again. Back up {settings.key_file}, apart from the database."
        )
    _run(settings, host, port, workers)


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


def _run(settings: Any, host: str, port: int, workers: int) -> None:
    import uvicorn

    os.environ.update(settings.environment())
    with tempfile.TemporaryDirectory(prefix="blindstep-metrics-") as shared:
        os.environ.setdefault("PROMETHEUS_MULTIPROC_DIR", shared)
        uvicorn.run(
            "blindstep.serve.app:build",
            factory=True,
            host=host,
            port=port,
            workers=workers,
            access_log=False,
            log_level="warning",
            timeout_graceful_shutdown=10,
            server_header=False,
            proxy_headers=False,  # anyone could write them, and have any number of addresses
        )


@serve.command()
def token(
    scope: Annotated[str, typer.Option(help="admin, site or metrics.")] = "admin",
    study: Annotated[str | None, typer.Option(help="The study of a site token.")] = None,
    label: Annotated[str, typer.Option(help="A word to recognise it by.")] = "",
    database: Database = None,
    key_file: KeyFile = None,
) -> None:
    """Make a new token and print it. Needs the key file, so only the operator can."""
    if scope not in ("admin", "site", "metrics") or (scope == "site") != (study is not None):
        raise InvalidArgument("--scope admin or metrics, or --scope site with --study ID.")
    with _opened(_settings(database, key_file)) as (tables, secrets):
        from blindstep.serve.access import Access
        from blindstep.serve.studies import Studies

        if study is not None:
            Studies(tables, secrets).row(study)  # refused if there is none
        print(Access(tables, secrets).create(scope, study, label)[1])


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
    print(
        f"{len(going_on)} studies go on, charged again; the others did not fit into their budget."
    )


def _charge(given: str) -> tuple[str, float]:
    cohort, _, mu = given.rpartition("=")
    try:
        return cohort, float(mu)
    except ValueError:
        raise InvalidArgument(f"--lost {given}: write COHORT=MU, such as readers=0.24.") from None
