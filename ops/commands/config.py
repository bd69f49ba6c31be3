"""`oncommit config`: every variable with its default and its meaning."""

import json
import os
from typing import Annotated

import typer
from pydantic import SecretStr
from pydantic_core import PydanticUndefined
from rich.console import Console
from rich.table import Table

from runtime.settings import PREFIX, Settings

# Read by the launcher and the client, not by the processes, so not part of `Settings`.
CLIENT = {
    "ONCOMMIT_URL": "a portal's base URL, for `oncommit submit` and other clients",
    "ONCOMMIT_TOKEN": "a team's token, for `oncommit submit` and other clients",
    "ONCOMMIT_TEST_POSTGRES": "system or embedded: forces the PostgreSQL of the local stack and of the tests",
}

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
        is_set = name in os.environ or f"{name}_FILE" in os.environ
        rows.append({"name": name, "default": shown, "meaning": info.description, "set": is_set})
    for name, meaning in CLIENT.items():
        rows.append({"name": name, "default": None, "meaning": meaning, "set": name in os.environ})
    return rows


def _default(value: object) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return "" if value is None else str(value)


def config(
    as_json: Annotated[bool, typer.Option("--json", help="one JSON array, for scripts")] = False,
) -> None:
    """Print every ONCOMMIT_ variable with its default and meaning.

    A variable X may also be given as X_FILE, a path whose content is the value.
    """
    rows = variables()
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table("variable", "default", "meaning", box=None, pad_edge=False)
    for row in rows:
        table.add_row(
            f"{row['name']}{' *' if row['set'] else ''}", _default(row["default"]), str(row["meaning"])
        )
    console = Console()
    # Cut to a pipe's made-up width a table would lose words: there each row is one line.
    if console.is_terminal:
        console.print(table, markup=False)
        console.print("* set now. Each variable X may be given as X_FILE, a path whose content is the value.")
    else:
        for row in rows:
            typer.echo(f"{row['name']}\t{_default(row['default'])}\t{row['meaning']}")
