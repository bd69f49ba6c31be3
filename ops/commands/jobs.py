"""`oncommit jobs ...`: look at jobs, and cancel one."""

from typing import Annotated
from uuid import UUID

import typer

from db import operate, oversight
from db.jobs import JobStatus
from ops import show
from ops.commands.acts import Kind, Limit, Reason, Team, operator_connection
from ops.commands.who import AsJson, Who
from ops.exit_codes import EPILOG, TROUBLE

app = typer.Typer(no_args_is_help=True, help="Jobs.", epilog=EPILOG)

COLUMNS = (
    "id",
    "team",
    "kind",
    "status",
    "attempt",
    "max_attempts",
    "dispatch_no",
    "error_class",
    "created_at",
)
CANCELLED = {
    "cancelled": "cancelled",
    "asked": "its render is going: it is told to stop, and the job is cancelled when it has",
    "already": "was cancelled already",
    "finished": "has ended already; nothing is changed",
    "unknown": "is no job",
}

JobId = Annotated[UUID, typer.Argument(metavar="ID")]
Status = Annotated[JobStatus | None, typer.Option(help="only this status")]


@app.command("list", epilog=EPILOG)
def list_(
    team: Team = None, status: Status = None, kind: Kind = None, limit: Limit = 50, as_json: AsJson = False
) -> None:
    """List jobs, newest first. No names, titles or digests are shown.

    Example: oncommit jobs list --team red --status retrying
    """
    with operator_connection() as conn:
        rows = oversight.jobs(conn, team=team, status=status, kind=kind, limit=limit)
    show.tell_rows(rows, COLUMNS, as_json=as_json, none="no such jobs")


@app.command("show", epilog=EPILOG)
def show_(job: JobId, as_json: AsJson = False) -> None:
    """Show one job and everything that happened to it.

    Example: oncommit jobs show 0198c6a4-5b1e-7c3e-9a57-0d8d0b7f9d11
    """
    show_job(job, as_json=as_json)


def show_job(job: UUID, *, as_json: bool, only: JobStatus | None = None) -> None:
    """Print a job and its events; `only`: of this status, else it is trouble.

    Raises:
        typer.Exit: there is no such job.

    """
    with operator_connection() as conn:
        row = oversight.job(conn, job)
    if row is None:
        show.note(f"{job} is no job")
        raise typer.Exit(TROUBLE)
    if only is not None and row["status"] != only:
        show.note(f"{job} is not {only}: it is {row['status']}")
        raise typer.Exit(TROUBLE)
    if as_json:
        show.tell_json(row)
        return
    events = row.pop("events")
    show.tell_facts({name: value for name, value in row.items() if value is not None})
    typer.echo("")
    show.tell_rows(events, ("seq", "at", "type", "who", "data"), as_json=False)


@app.command(epilog=EPILOG)
def cancel(job: JobId, *, reason: Reason, who: Who, as_json: AsJson = False) -> None:
    """Cancel a job that has not ended. A render that is going is told to stop.

    Example: oncommit jobs cancel 0198c6a4-5b1e-7c3e-9a57-0d8d0b7f9d11 --reason "wrong document"
    """
    with operator_connection() as conn:
        outcome = operate.cancel(conn, job, who=who, reason=reason)
    if as_json:
        show.tell_json({"id": job, "outcome": outcome})
    else:
        typer.echo(f"{job}: {CANCELLED[outcome]}")
    if outcome in {"finished", "unknown"}:
        raise typer.Exit(TROUBLE)
