"""`oncommit dispatch probe`: synthetic intents through the whole path, and each stage's time."""

from dataclasses import asdict
from typing import Annotated

import typer

from db.probes import MOST
from ops import probing, show
from ops.commands.acts import MaybeReason, operator_connection
from ops.commands.who import AsJson, Who
from ops.diagnosis import Finding
from ops.exit_codes import LIMIT_REACHED, TROUBLE
from ops.probe_causes import causes
from runtime.settings import settings

COLUMNS = ("stage", "passed", "median_ms", "p95_ms", "max_ms")


def probe(
    *,
    count: Annotated[int, typer.Option(min=1, max=MOST, help="how many intents")] = 10,
    timeout: Annotated[float, typer.Option(min=0, help="seconds to wait for all of them")] = 30.0,
    reason: MaybeReason = None,
    who: Who,
    as_json: AsJson = False,
) -> None:
    """Send synthetic intents: outbox, WAL, relay, Redis, worker; tell when each stage was passed.

    They go by a lane of their own, render nothing, touch no team's limits, and leave nothing behind but a
    line in the audit trail. Times are milliseconds since their commit. Exit code 0 only when all came
    through, by the road that jobs should come by; otherwise the cause is named, and what mends it.

    Example: oncommit dispatch probe --count 100 --timeout 10 --json
    """
    given = settings()
    with operator_connection() as conn:
        try:
            run = probing.run(conn, given, count, timeout, who=who, reason=reason or "probe")
        except KeyboardInterrupt:
            show.note("stopped; the probes are taken away")
            raise typer.Exit(TROUBLE) from None
        found = causes(conn, given, run)
    _tell(run, found, as_json=as_json)
    if not run.ended:
        raise typer.Exit(LIMIT_REACHED)
    if run.missing or found:
        raise typer.Exit(TROUBLE)


def _tell(run: probing.Run, found: list[Finding], *, as_json: bool) -> None:
    if as_json:
        show.tell_json(
            {
                "count": run.count,
                "missing": run.missing,
                "commit_ms": run.commit_ms,
                "stages": {name: asdict(stage) for name, stage in run.stages.items()},
                "redis": run.redis,
                "causes": [asdict(finding) for finding in found],
            }
        )
        return
    rows = [
        {"stage": name, "passed": s.passed, "median_ms": s.median, "p95_ms": s.p95, "max_ms": s.max}
        for name, s in run.stages.items()
    ]
    typer.echo(f"{run.count} intents committed in {run.commit_ms:.1f} ms; since then, in ms:")
    show.tell_rows(rows, COLUMNS, as_json=False)
    if run.missing:
        typer.echo(f"{run.missing} of {run.count} did NOT come through")
    for finding in found:
        typer.echo(show.printable(f"{finding.check}: {finding.detail}"))
        typer.echo(show.printable(f"  -> {finding.advice}"))
