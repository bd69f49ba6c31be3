"""`oncommit config`: every variable with its default and its meaning."""

import json
import os
from typing import Annotated

import typer
from pydantic import SecretStr
from pydantic_core import PydanticUndefined
from rich.console import Console
from rich.table import Table

from ops.commands.submit import PORTAL
from runtime.settings import PREFIX, Settings

# Read by the launcher and the client, not by the processes, so not part of `Settings`.
CLIENT = {
    "ONCOMMIT_URL": (PORTAL, "a portal's base URL, for `oncommit submit` and other clients"),
    "ONCOMMIT_TOKEN": (None, "a team's token, for `oncommit submit` and other clients"),
    "ONCOMMIT_TEST_POSTGRES": (
        None,
        "system or embedded: forces the PostgreSQL of the local stack and of the tests",
    ),
}
# Read by the client itself; the others by `runtime.settings`, any of them.
FILES_OF_CLIENT = frozenset({"ONCOMMIT_TOKEN"})

Row = dict[str, str | bool | float | None]


def variables() -> list[Row]:
    """Return name, default, meaning and whether it is set, of each variable; never a value that is set."""
    rows: list[Row] = []
    for field, info in Settings.model_fields.items():
        name = f"{PREFIX}{field.upper()}"
        default = None if info.default is PydanticUndefined else info.default
        if isinstance(default, SecretStr):
            default = default.get_secret_value()
        shown = default if default is None or isinstance(default, (bool, int, float)) else str(default)
        is_set = bool(os.environ.get(name) or os.environ.get(f"{name}_FILE"))
        secret = "SecretStr" in str(info.annotation)
        rows.append(
            {
                "name": name,
                "file": f"{name}_FILE",
                "secret": secret,
                "default": shown,
                "meaning": info.description,
                "set": is_set,
            }
        )
    for name, (default, meaning) in CLIENT.items():
        file = f"{name}_FILE" if name in FILES_OF_CLIENT else None
        rows.append(
            {
                "name": name,
                "file": file,
                "secret": name in FILES_OF_CLIENT,
                "default": default,
                "meaning": meaning,
                "set": bool(os.environ.get(name) or (file is not None and os.environ.get(file))),
            }
        )
    return rows


def _default(value: object) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return "" if value is None else str(value)


def config(
    as_json: Annotated[bool, typer.Option("--json", help="one JSON array, for scripts")] = False,
) -> None:
    """Print every ONCOMMIT_ variable with its default and meaning.

    A variable X may also be given as X_FILE, a path whose content is the value (but for ONCOMMIT_URL and
    ONCOMMIT_TEST_POSTGRES): so that no secret need be in an environment.

    Example: oncommit config
    """
    rows = variables()
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("variable", "default", "meaning"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(
            f"{row['name']}{' +F' if row['secret'] else ''}{' *' if row['set'] else ''}",
            _default(row["default"]),
            str(row["meaning"]),
        )
    console = Console()
    # Cut to a pipe's made-up width a table would lose words: there each row is one line.
    if console.is_terminal:
        console.print(table, markup=False)
        console.print("* set now. +F: or in a file, ONCOMMIT_..._FILE names its path: for secrets.")
    else:
        for row in rows:
            typer.echo(f"{row['name']}\t{_default(row['default'])}\t{row['meaning']}\t{row['file'] or ''}")
