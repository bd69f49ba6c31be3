"""`oncommit migrate`: bring the database to this version."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from db import cluster
from db import migrate as migrations
from db.cluster import BadLogin
from runtime.settings import settings

Logins = Annotated[
    list[Path] | None,
    typer.Option(
        "--login",
        metavar="FILE",
        help="repeatable: a file with a role's connection URL, as its process gets it in "
        "ONCOMMIT_DATABASE_URL_FILE; the role is given the password in it",
    ),
]


def migrate(
    login: Logins = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object, for scripts")] = False,
) -> None:
    """Bring the database to this version. Safe to repeat, and to run from several places at once.

    Connect (ONCOMMIT_DATABASE_URL) as the database's owner, the first time with CREATEROLE.

    Example: oncommit migrate

    Example: oncommit migrate --login secrets/portal --login secrets/relay
    """
    dsn = settings().database_url.get_secret_value()
    logins = [_read(file) for file in login or []]
    applied = migrations.migrate(dsn, settings().publication)
    roles = _give(dsn, logins) if logins else []
    if as_json:
        typer.echo(json.dumps({"applied": applied} | ({"passwords": roles} if roles else {})))
        return
    typer.echo(
        f"applied: {', '.join(applied)}" if applied else "nothing to do: the database is at this version"
    )
    if roles:
        typer.echo(f"passwords set: {', '.join(roles)}")


def _give(dsn: str, logins: Sequence[str]) -> list[str]:
    try:
        return cluster.give_logins(dsn, logins)
    except BadLogin as error:
        raise typer.BadParameter(str(error), param_hint="--login") from error


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise typer.BadParameter(f"cannot read {file}: {error.strerror}", param_hint="--login") from error
