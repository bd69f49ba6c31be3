"""`oncommit prune`: delete what ended long ago. Nothing else ever deletes a job."""

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Annotated, Any

import typer

from db import keeping, oversight
from db.keeping import Pruned
from ops import show
from ops.commands.acts import MaybeReason, operator_connection
from ops.commands.who import AsJson, Who
from ops.exit_codes import TROUBLE
from ops.spans import parse_span

OlderThan = Annotated[
    Any,
    typer.Option(
        parser=parse_span, metavar="SPAN", help="ended longer ago: 30d, 12h, 4w", show_default=False
    ),
]
IncludeDead = Annotated[
    bool, typer.Option("--include-dead", help="also dead jobs: no replay brings them back")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="count, and change nothing")]


def prune(
    *,
    older_than: OlderThan,
    include_dead: IncludeDead = False,
    dry_run: DryRun = False,
    reason: MaybeReason = None,
    who: Who,
    as_json: AsJson = False,
) -> None:
    """Delete jobs that ended long ago, with their events and idempotency keys; batches only as a whole.

    Dead jobs are kept unless --include-dead. Superseded settings, workers without a heartbeat and finished
    replay runs of that age go too; documents, previews and the audit trail stay. A key that is pruned with
    its job makes a new job when a client uses it again. May be interrupted and run again.

    Example: oncommit prune --older-than 30d --dry-run
    """
    span: timedelta = older_than
    total = Pruned()
    complete = False
    with operator_connection() as conn:
        jobs, batches, before = oversight.prunable(conn, span, dead_too=include_dead)
        if dry_run:
            _tell_plan(jobs, batches, before, as_json=as_json)
            return
        why = reason or f"older than {span}"
        try:
            with show.progress(quiet=as_json) as bar:
                task = bar.add_task("prune", total=jobs)
                for pruned in keeping.prune(conn, before, dead_too=include_dead, who=who, reason=why):
                    total += pruned
                    bar.advance(task, pruned.jobs)
            complete = True
        except KeyboardInterrupt:
            show.note("stopped; run it again to go on")
    if as_json:
        show.tell_json({"before": before, "finished": complete, **asdict(total)})
    else:
        typer.echo(
            f"pruned {total.jobs} jobs, {total.events} events, {total.requests} requests, "
            f"{total.batches} batches, {total.rest} other rows that ended before {show.cell(before)}"
        )
    if not complete:
        raise typer.Exit(TROUBLE)


def _tell_plan(jobs: int, batches: int, before: datetime, *, as_json: bool) -> None:
    if as_json:
        show.tell_json({"dry_run": True, "before": before, "jobs": jobs, "batches": batches})
    else:
        typer.echo(
            f"{jobs} jobs, {batches} whole batches among them, ended before {show.cell(before)}; "
            "nothing is changed"
        )
