"""`oncommit dispatch ...`: pause, resume, look, drain."""

from typing import Annotated, Any

import typer
from psycopg import Connection

from db import operate, oversight
from db.control import EVERYTHING
from db.operate import UnknownTeam
from ops import show
from ops.commands.acts import MaybeReason, Reason, Team, operator_connection
from ops.commands.who import AsJson, Who
from ops.dispatching import dispatch_state
from ops.draining import wait_until_idle
from ops.exit_codes import EPILOG, LIMIT_REACHED, TROUBLE
from runtime.settings import settings

app = typer.Typer(no_args_is_help=True, help="Dispatch: pause, resume, look, drain.", epilog=EPILOG)

LANE_COLUMNS = (
    "lane",
    "waiting",
    "running",
    "retrying",
    "delayed",
    "dead",
    "oldest_due",
    "max_running",
    "paused",
)
LEFT_COLUMNS = ("kind", "status", "jobs", "first_due", "last_due")
OF_TEAM = Annotated[str | None, typer.Option(help="only this team; default: everything")]


@app.command(epilog=EPILOG)
def pause(*, team: OF_TEAM = None, reason: Reason, who: Who, as_json: AsJson = False) -> None:
    """Let no job start until `resume`. Nothing is deleted, accepting goes on, what is rendered ends.

    In force within 2 s, for whatever waits; it survives restarts of everything and a loss of Redis.

    Example: oncommit dispatch pause --team red --reason "their documents crash the renderer"
    """
    with operator_connection() as conn:
        changed = _pause(conn, team, paused=True, who=who, reason=reason)
        _tell_pause(conn, team, changed=changed, as_json=as_json)


@app.command(epilog=EPILOG)
def resume(*, team: OF_TEAM = None, reason: MaybeReason = None, who: Who, as_json: AsJson = False) -> None:
    """Undo a pause or a drain. A team's own pause and the pause of everything are undone each by itself.

    Example: oncommit dispatch resume
    """
    with operator_connection() as conn:
        changed = _pause(conn, team, paused=False, who=who, reason=reason or "resumed")
        _tell_pause(conn, team, changed=changed, as_json=as_json)


def _pause(conn: Connection[Any], team: str | None, *, paused: bool, who: str, reason: str) -> bool:
    try:
        return operate.pause(conn, team or EVERYTHING, paused, who=who, reason=reason)
    except UnknownTeam:
        raise typer.BadParameter(f"no team {team!r}", param_hint="--team") from None


def _tell_pause(conn: Connection[Any], team: str | None, *, changed: bool, as_json: bool) -> None:
    (row,) = oversight.lanes(conn, team or EVERYTHING)
    if as_json:
        told = {name: row[name] for name in ("paused", "paused_by", "paused_reason", "paused_at")}
        show.tell_json({"team": team, "changed": changed, **told})
        return
    state = "paused" if row["paused"] else "running"
    typer.echo(f"{_named(team)}: {'' if changed else 'was already '}{state}{_by(row)}")
    if team and not row["paused"] and oversight.lanes(conn, EVERYTHING)[0]["paused"]:
        show.note("everything is paused still: oncommit dispatch resume")


def _named(team: str | None) -> str:
    return f"team {team}" if team else "dispatch"


def _by(row: dict[str, Any]) -> str:
    if not row["paused"]:
        return ""
    return show.printable(
        f" by {row['paused_by']} since {show.cell(row['paused_at'])}: {row['paused_reason']}"
    )


@app.command(epilog=EPILOG)
def status(
    *,
    team: Team = None,
    every: Annotated[bool, typer.Option("--all", help="also teams without any work")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what waits, runs, retries and is dead by team, pauses with who and why, the slot and Redis.

    All counts but those of Redis come from PostgreSQL. `oldest due` is how long the oldest intent that
    could run now has waited: the truth about dispatch.

    Example: oncommit dispatch status --json
    """
    with operator_connection() as conn:
        state = dispatch_state(conn, settings(), team)
    if as_json:
        show.tell_json(state)
        return
    typer.echo(f"dispatch: {'paused' + _by(state) if state['paused'] else 'running'}")
    typer.echo(f"oldest due: {show.span(state['oldest_due_seconds'])}, {state['due_intents']} intents due")
    _tell_slot(state["slot"])
    _tell_redis(state["redis"])
    typer.echo("")
    shown = [row | _lane_words(row) for row in state["lanes"] if every or _busy(row)]
    show.tell_rows(shown, LANE_COLUMNS, as_json=False, none="no team has work, and none is paused")


def _busy(row: dict[str, Any]) -> bool:
    return bool(row["paused"] or any(row[n] for n in ("waiting", "running", "retrying", "delayed", "dead")))


def _lane_words(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "oldest_due": show.span(row["oldest_due_seconds"]),
        "paused": f"yes{_by(row)}" if row["paused"] else "no",
    }


def _tell_slot(slot: dict[str, Any] | None) -> None:
    if slot is None:
        typer.echo(f"slot {settings().slot}: none; the relay makes it when it starts")
        return
    typer.echo(
        f"slot {slot['slot']} ({slot['plugin']}): {'read' if slot['active'] else 'NOT READ by any relay'}, "
        f"{slot['wal_status']}, {show.size(slot['lag_bytes'])} not confirmed, "
        f"{show.size(slot['retained_bytes'])} kept on disk; confirmed up to {slot['confirmed_lsn']}"
    )


def _tell_redis(redis: dict[str, Any]) -> None:
    if not redis["reachable"]:
        typer.echo(f"Redis: not reachable from here ({redis['reason']})")
        return
    typer.echo(f"relay had read up to {redis['position'].get('lsn', 'nothing yet')}")
    for queue, stats in redis["queues"].items():
        typer.echo(
            f"Redis queue {queue}: {stats['waiting']} waiting in {stats['lanes_waiting']} lanes, "
            f"{stats['delayed']} delayed, {stats['running']} in flight, {stats['consumers']} consumers"
        )


@app.command(epilog=EPILOG)
def drain(
    *,
    team: OF_TEAM = None,
    timeout: Annotated[float, typer.Option(min=0, help="seconds to wait for what is running")] = 60.0,
    abort: Annotated[bool, typer.Option("--abort", help="undo: the same as `dispatch resume`")] = False,
    reason: MaybeReason = None,
    who: Who,
    as_json: AsJson = False,
) -> None:
    """Pause, wait until nothing is being rendered, and report what remains by kind.

    What waits or retries stays as it is and is not waited for; accepting goes on. At its limit it stops
    waiting with exit code 3. However it ends, also killed, the pause stays, visible in `dispatch status`,
    until `oncommit dispatch resume` or `drain --abort`.

    Example: oncommit dispatch drain --timeout 120 --reason "PostgreSQL upgrade"
    """
    if abort:
        resume(team=team, reason=reason or "drain aborted", who=who, as_json=as_json)
        return
    if reason is None:
        raise typer.BadParameter("say why; it is kept in the audit trail", param_hint="--reason")
    undo = f"oncommit dispatch resume{f' --team {team}' if team else ''}"
    with operator_connection() as conn:
        _pause(conn, team, paused=True, who=who, reason=f"drain: {reason}"[:1000])
        show.note(f"{_named(team)} is paused. To undo: {undo}")
        try:
            drained = _wait(conn, team, timeout, quiet=as_json)
        except KeyboardInterrupt:
            show.note(f"stopped waiting; the pause stays. To undo: {undo}")
            raise typer.Exit(TROUBLE) from None
        left = oversight.remaining(conn, team)
    _tell_drained(team, left, undo, drained=drained, as_json=as_json)
    if not drained:
        raise typer.Exit(LIMIT_REACHED)


def _wait(conn: Connection[Any], team: str | None, timeout: float, *, quiet: bool) -> bool:
    with show.progress(quiet=quiet) as bar:
        task = bar.add_task("running to end", total=None)
        most = 0

        def tell(running: int) -> None:
            nonlocal most
            most = max(most, running)
            bar.update(task, total=most, completed=most - running)

        return wait_until_idle(conn, team, timeout, tell)


def _tell_drained(
    team: str | None, left: list[dict[str, Any]], undo: str, *, drained: bool, as_json: bool
) -> None:
    if as_json:
        show.tell_json({"team": team, "drained": drained, "remaining": left, "undo": undo})
        return
    show.tell_rows(left, LEFT_COLUMNS, as_json=False, none="nothing remains")
    running = sum(row["jobs"] for row in left if row["status"] == "processing")
    typer.echo("drained: nothing is running" if drained else f"NOT drained in time: {running} still running")
