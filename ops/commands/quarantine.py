"""`oncommit quarantine ...`: list what is put away, and put back what belongs to no job."""

from typing import Annotated

import typer

from db import operate, oversight
from ops import show
from ops.commands.acts import Limit, Reason, operator_connection
from ops.commands.who import AsJson, Who
from ops.exit_codes import EPILOG, TROUBLE

app = typer.Typer(no_args_is_help=True, help="Quarantine: messages that nobody can run.")

REPLAYED = {
    "replayed": "put back into the outbox under its old message id",
    "already": "was put back before; nothing is changed",
    "alive": "is not needed: an intent with its message id is alive",
    "unknown": "is not in quarantine",
    "of_a_job": "belongs to a job: `oncommit dead replay` brings the job back, with a new message",
    "cut": "may have lost its end: only so much of a body is kept; whoever made it has to append it again",
}
DONE = {"replayed", "already", "alive"}


@app.callback()
def group() -> None:
    """Quarantine: messages that nobody can run, put away with the reason.

    The job of such a message is dead with the error class Quarantined: `oncommit dead replay --error
    Quarantined` brings it back. A message that belongs to no job comes back by `oncommit quarantine replay`.
    """


@app.command("list", epilog=EPILOG)
def list_(
    *,
    lane: Annotated[str | None, typer.Option(help="only this lane (team)")] = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """List quarantined messages, last first, without their bodies.

    Example: oncommit quarantine list --lane red
    """
    with operator_connection() as conn:
        rows = oversight.quarantine(conn, lane=lane, limit=limit)
    columns = ("id", "at", "lane", "message_id", "job", "who", "reason")
    show.tell_rows(rows, columns, as_json=as_json, none="nothing is in quarantine")


@app.command("replay", epilog=EPILOG)
def replay(
    number: Annotated[
        int, typer.Argument(metavar="ID", min=1, help="as `oncommit quarantine list` shows it")
    ],
    *,
    reason: Reason,
    who: Who,
    as_json: AsJson = False,
) -> None:
    """Put back a message that belongs to no job, once its cause is repaired; it is due at once.

    It keeps its message id. Given twice, the second time changes nothing.

    Example: oncommit quarantine replay 7 --reason "the worker knows it now"
    """
    with operator_connection() as conn:
        outcome = operate.replay_quarantined(conn, number, who=who, reason=reason)
    told, _, constraint = outcome.partition(" ")
    text = (
        REPLAYED.get(told) or f"is refused by the outbox: {constraint}; whoever made it has to append another"
    )
    if as_json:
        show.tell_json({"id": number, "outcome": outcome})
    else:
        typer.echo(f"{number} {text}")
    if told not in DONE:
        raise typer.Exit(TROUBLE)
