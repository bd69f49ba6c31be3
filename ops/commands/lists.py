"""`oncommit workers | actions list`: who works, who did what."""

import typer

from db import oversight
from ops import show
from ops.commands.acts import Limit, operator_connection
from ops.commands.who import AsJson
from ops.exit_codes import EPILOG

workers = typer.Typer(no_args_is_help=True, help="Workers: processes that render.")
actions = typer.Typer(no_args_is_help=True, help="Actions: who of the operators did what, and why.")


@workers.callback()
def workers_group() -> None:
    """Workers: processes that render."""


@actions.callback()
def actions_group() -> None:
    """Actions: who of the operators did what, and why."""


@workers.command("list", epilog=EPILOG)
def workers_list(*, as_json: AsJson = False) -> None:
    """List worker processes, how long each has been silent, and how many jobs name it.

    Example: oncommit workers list
    """
    with operator_connection() as conn:
        rows = oversight.workers(conn)
    columns = ("id", "host", "pid", "threads", "running", "silent_seconds", "started_at")
    show.tell_rows(rows, columns, as_json=as_json, none="no worker")


@actions.command("list", epilog=EPILOG)
def actions_list(*, limit: Limit = 50, as_json: AsJson = False) -> None:
    """List what operators did, last first.

    Example: oncommit actions list --limit 10
    """
    with operator_connection() as conn:
        rows = oversight.audit(conn, limit)
    shown = rows if as_json else [row | {"target": _shortened(show.cell(row["target"]))} for row in rows]
    show.tell_rows(shown, ("at", "who", "action", "reason", "target"), as_json=as_json, none="nothing yet")


def _shortened(text: str, most: int = 100) -> str:
    """Cut the ids of a replay of hundreds of jobs; `--json` has them all."""
    return text if len(text) <= most else f"{text[:most]}..."
