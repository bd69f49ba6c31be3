"""Who acts: kept with every audited change."""

import getpass
from typing import Annotated

import typer


def operator() -> str:
    """Return `operator:` and the name of the user who runs this."""
    try:
        return f"operator:{getpass.getuser()}"
    except (KeyError, OSError):  # a uid without a name, as in containers
        return "operator:unknown"


Who = Annotated[
    str,
    typer.Option(
        default_factory=operator, help="who acts, kept in the audit trail", show_default="operator:$USER"
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="one JSON object, for scripts")]
