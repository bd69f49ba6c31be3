"""`oncommit migrate`: bring the database to this version."""

import json
from typing import Annotated

import typer

from db import migrate as migrations
from runtime.settings import settings


def migrate(
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object, for scripts")] = False,
) -> None:
    """Bring the database to this version. Safe to repeat, and to run from several places at once.

    Connect (ONCOMMIT_DATABASE_URL) as the database's owner, the first time with CREATEROLE.
    """
    applied = migrations.migrate(settings().database_url.get_secret_value())
    if as_json:
        typer.echo(json.dumps({"applied": applied}))
    elif applied:
        typer.echo(f"applied: {', '.join(applied)}")
    else:
        typer.echo("nothing to do: the database is at this version")
