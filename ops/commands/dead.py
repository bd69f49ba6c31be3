"""`oncommit dead ...`: dead jobs, and their replay. Nothing dead expires by itself."""

from collections import Counter
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import typer
from psycopg import Connection

from db import oversight, replay
from db.jobs import JobStatus
from db.replay import Filter, UnknownRun
from ops import show
from ops.commands.acts import Act, Kind, Limit, MaybeReason, Team, operator_connection
from ops.commands.jobs import JobId, show_job
from ops.commands.who import AsJson, Who
from ops.exit_codes import EPILOG, TROUBLE
from ops.replaying import Pace, StillLocked, replay_ids, replay_run
from ops.spans import parse_rate, parse_since

app = typer.Typer(
    no_args_is_help=True, help="Dead jobs: they stay until they are replayed or pruned.", epilog=EPILOG
)

COLUMNS = ("id", "team", "kind", "error_class", "attempt", "dispatch_no", "finished_at")
PLAN_COLUMNS = ("team", "kind", "error_class", "jobs", "oldest", "newest")

Error = Annotated[str | None, typer.Option(help="only this error class, such as RenderTimeout")]
Since = Annotated[
    Any | None,
    typer.Option(parser=parse_since, metavar="WHEN", help="not those that died before: 2h, 30d, or a time"),
]
Ids = Annotated[list[UUID] | None, typer.Argument(metavar="ID", help="these jobs", show_default=False)]
Most = Annotated[int | None, typer.Option("--limit", min=1, help="at most so many: by team, oldest first")]
Rate = Annotated[
    float | None, typer.Option(parser=parse_rate, metavar="N/s", help="at most so many a second")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="print the plan, and change nothing")]
Everything = Annotated[bool, typer.Option("--all", help="every dead job: instead of a filter")]
Afresh = Annotated[
    bool, typer.Option("--afresh", help="do not go on with an unfinished run of the same filter")
]
RunId = Annotated[UUID | None, typer.Option("--run", help="go on with this run")]


@app.command("list", epilog=EPILOG)
def list_(
    *,
    team: Team = None,
    kind: Kind = None,
    error: Error = None,
    since: Since = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """List dead jobs, last died first. No names, titles, digests or renderer texts are shown.

    Example: oncommit dead list --team red --error RenderTimeout --since 2h
    """
    wanted = Filter(team, kind, error, since, limit)
    with operator_connection() as conn:
        rows = oversight.dead(conn, wanted.parameters())
    show.tell_rows(rows, COLUMNS, as_json=as_json, none="no such dead jobs")


@app.command("show", epilog=EPILOG)
def show_(job: JobId, as_json: AsJson = False) -> None:
    """Show one dead job and everything that happened to it.

    Example: oncommit dead show 0198c6a4-5b1e-7c3e-9a57-0d8d0b7f9d11
    """
    show_job(job, as_json=as_json, only=JobStatus.DEAD)


@app.command("replay", epilog=EPILOG)
def replay_(
    jobs: Ids = None,
    *,
    team: Team = None,
    kind: Kind = None,
    error: Error = None,
    since: Since = None,
    everything: Everything = False,
    limit: Most = None,
    rate: Rate = None,
    dry_run: DryRun = False,
    run: RunId = None,
    afresh: Afresh = False,
    reason: MaybeReason = None,
    who: Who,
    as_json: AsJson = False,
) -> None:
    """Replay dead jobs: same job, next dispatch, fresh attempts. Only the dead are touched.

    By filter, it takes what is dead at this moment: a job that fails again meanwhile is not replayed
    twice. Interrupted or killed, the same command within a day goes on where it was (or --run ID).

    Example: oncommit dead replay --team red --error RenderTimeout --since 2h --dry-run

    Example: oncommit dead replay --team red --rate 50/s --reason "the renderer is fixed"

    Example: oncommit dead replay 0198c6a4-5b1e-7c3e-9a57-0d8d0b7f9d11 --reason "asked by the team"
    """
    wanted = Filter(team, kind, error, since, limit)
    _check_usage(jobs, wanted, everything=everything, run=run, dry_run=dry_run, reason=reason)
    with operator_connection() as conn:
        if dry_run:
            _tell_plan(_planned_ids(conn, jobs) if jobs else _planned(conn, wanted, run), as_json=as_json)
            return
        act = Act(who, reason or "")
        if jobs:
            _replay_ids(conn, jobs, Pace(rate), act, as_json=as_json)
            return
        run_id = run or replay.begin(conn, wanted, afresh=afresh, who=act.who, reason=act.reason)
        _replay_run(conn, run_id, Pace(rate), act, as_json=as_json)


def _check_usage(
    jobs: list[UUID] | None,
    wanted: Filter,
    *,
    everything: bool,
    run: UUID | None,
    dry_run: bool,
    reason: str | None,
) -> None:
    filtered = any((wanted.team, wanted.kind, wanted.error, wanted.since))
    if sum((bool(jobs), filtered, everything, run is not None)) != 1:
        raise typer.BadParameter(
            "one of these: jobs by ID, a filter (--team --kind --error --since), --all, or --run"
        )
    if wanted.most is not None and (jobs or run):
        raise typer.BadParameter("a limit goes with a filter or --all", param_hint="--limit")
    if reason is None and not dry_run:
        raise typer.BadParameter("say why; it is kept in the audit trail", param_hint="--reason")


def _planned(conn: Connection[Any], wanted: Filter, run: UUID | None) -> dict[str, Any]:
    if run is not None:
        found = _known(conn, run)
        groups = [] if found.finished_at else replay.plan(conn, found.left, found.before)
    else:
        groups = replay.plan(conn, wanted)
    return {"dry_run": True, "jobs": sum(row["jobs"] for row in groups), "groups": groups}


def _planned_ids(conn: Connection[Any], jobs: list[UUID]) -> dict[str, Any]:
    found = [oversight.job(conn, job) for job in dict.fromkeys(jobs)]
    rows = [row for row in found if row is not None]
    dead = [row for row in rows if row["status"] == JobStatus.DEAD]
    counts = Counter((row["team"], row["kind"], row["error_class"]) for row in dead)
    ends: dict[tuple[str, str, str], list[datetime]] = {}
    for row in dead:
        ends.setdefault((row["team"], row["kind"], row["error_class"]), []).append(row["finished_at"])
    groups = [
        dict(zip(PLAN_COLUMNS, (*key, count, min(ends[key]), max(ends[key])), strict=True))
        for key, count in sorted(counts.items())
    ]
    others = Counter(f"already {row['status']}" for row in rows if row["status"] != JobStatus.DEAD)
    others["unknown"] = len(found) - len(rows)
    return {"dry_run": True, "jobs": len(dead), "groups": groups, "others": dict(+others)}


def _tell_plan(plan: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        show.tell_json(plan)
        return
    show.tell_rows(plan["groups"], PLAN_COLUMNS, as_json=False, none="nothing matches")
    for outcome, count in plan.get("others", {}).items():
        show.note(f"{count} {outcome}: would be left as they are")
    show.note(f"{plan['jobs']} jobs would be replayed; nothing is changed")


def _replay_ids(conn: Connection[Any], jobs: list[UUID], pace: Pace, act: Act, *, as_json: bool) -> None:
    outcomes: dict[UUID, str] = {}
    with show.progress(quiet=as_json or len(jobs) == 1) as bar:
        task = bar.add_task("replay", total=len(set(jobs)))
        for done in replay_ids(conn, jobs, pace, who=act.who, reason=act.reason):
            outcomes |= done
            bar.update(task, completed=len(outcomes))
    if as_json:
        counts = Counter(outcomes.values())
        show.tell_json(
            {"replayed": counts["replayed"], "jobs": [{"id": i, "outcome": o} for i, o in outcomes.items()]}
        )
    else:
        for job, outcome in outcomes.items():
            typer.echo(f"{job}\t{outcome}")
    if "unknown" in outcomes.values():
        raise typer.Exit(TROUBLE)


def _known(conn: Connection[Any], run: UUID) -> replay.Run:
    try:
        return replay.run(conn, run)
    except UnknownRun:
        raise typer.BadParameter(f"{run} is no run", param_hint="--run") from None


def _replay_run(conn: Connection[Any], run_id: UUID, pace: Pace, act: Act, *, as_json: bool) -> None:
    run = _known(conn, run_id)
    left = 0 if run.finished_at else sum(row["jobs"] for row in replay.plan(conn, run.left, run.before))
    _tell_start(run, left)
    replayed = 0
    complete = False
    try:
        with show.progress(quiet=as_json) as bar:
            task = bar.add_task("replay", total=left)
            for done in replay_run(conn, run_id, pace, who=act.who, reason=act.reason):
                replayed += done.replayed
                bar.update(task, advance=done.replayed)
        complete = True
    except StillLocked as error:
        show.note(f"oncommit: {error}")
    except KeyboardInterrupt:
        show.note(f"stopped. To go on: the same command, or oncommit dead replay --run {run_id}")
    if as_json:
        told = replay.run(conn, run_id)
        show.tell_json(
            {
                "run": run_id,
                "before": told.before,
                "replayed": replayed,
                "done": told.done,
                "finished": complete,
            }
        )
    else:
        typer.echo(f"{replayed} jobs replayed, {run.done + replayed} by the run")
    if not complete:
        raise typer.Exit(TROUBLE)


def _tell_start(run: replay.Run, left: int) -> None:
    """Say on standard error, before anything is changed, by which name the run goes on if it is killed."""
    what = f"run {run.id}: {left} jobs that were dead before {run.before.isoformat(timespec='milliseconds')}"
    if run.finished_at is not None:
        show.note(f"run {run.id} finished at {show.cell(run.finished_at)}")
    elif run.done:
        show.note(f"going on with {what}; {run.done} are done. What died since needs another run")
    else:
        show.note(f"{what}. If this is interrupted, the same command goes on")
