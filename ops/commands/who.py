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


WHO_CHARACTERS = 200  # the CHECKs of job_events.who and operator_actions.who


def checked_who(who: str) -> str:
    """Return `who` without outer spaces.

    Raises:
        typer.BadParameter: it is empty or too long.

    """
    if not 1 <= len(who.strip()) <= WHO_CHARACTERS:
        raise typer.BadParameter(f"1 to {WHO_CHARACTERS} characters")
    return who.strip()


Who = Annotated[
    str,
    typer.Option(
        default_factory=operator,
        callback=checked_who,
        help="who acts, kept in the audit trail",
        show_default="operator:$USER",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="one JSON object, for scripts")]
