"""What the operator's commands share: their connection, their options, and `--reason`."""

from dataclasses import dataclass
from typing import Annotated, Any

import typer
from psycopg import Connection

from db.pool import connect
from runtime.settings import settings

REASON_CHARACTERS = 1000  # the CHECK of operator_actions.reason
ROWS_MOST = 10_000  # what a terminal or one JSON array may reasonably hold


def checked_reason(reason: str | None) -> str | None:
    """Return the reason without outer spaces.

    Raises:
        typer.BadParameter: it is empty or too long.

    """
    if reason is None:
        return None
    if not 1 <= len(reason.strip()) <= REASON_CHARACTERS:
        raise typer.BadParameter(f"1 to {REASON_CHARACTERS} characters")
    return reason.strip()


Reason = Annotated[
    str, typer.Option(help="why; kept in the audit trail", callback=checked_reason, show_default=False)
]
MaybeReason = Annotated[
    str | None, typer.Option(help="why; kept in the audit trail", callback=checked_reason)
]
Team = Annotated[str | None, typer.Option(help="only this team")]
Kind = Annotated[str | None, typer.Option(help="only this kind of job")]
Limit = Annotated[int, typer.Option(min=1, max=ROWS_MOST, help="at most so many")]


@dataclass(frozen=True, slots=True)
class Act:
    """Who acts, and why."""

    who: str
    reason: str


def operator_connection() -> Connection[Any]:
    """Return a connection to ONCOMMIT_DATABASE_URL, which is the operator's; use it as a context manager.

    Raises:
        psycopg.OperationalError: the server is away or refuses.

    """
    return connect(settings().database_url.get_secret_value(), "oncommit operate")
