"""`oncommit artifacts ...`: whether the previews of succeeded jobs are still there."""

from collections import Counter
from contextlib import nullcontext
from typing import Annotated

import typer

from db import keeping
from ops import show
from ops.commands.acts import MaybeReason, operator_connection
from ops.commands.who import AsJson, Who
from ops.exit_codes import EPILOG, TROUBLE
from ops.verifying import GOOD, Finding, Repairer, open_store, verify
from runtime.settings import settings

app = typer.Typer(no_args_is_help=True, help="Artifacts: the previews of succeeded jobs.", epilog=EPILOG)


@app.callback()
def group() -> None:
    """Artifacts: the previews of succeeded jobs."""


@app.command("verify", epilog=EPILOG)
def verify_(
    *,
    repair: Annotated[bool, typer.Option("--repair", help="make what is missing or damaged again")] = False,
    reason: MaybeReason = None,
    who: Who,
    as_json: AsJson = False,
) -> None:
    """Compare every succeeded job's preview with the store in ONCOMMIT_BLOBS, and list what is wrong.

    A preview that is made again is stored only when it is the very same; no job or event changes.

    Example: oncommit artifacts verify --repair
    """
    store = open_store(settings().blobs)
    counts: Counter[str] = Counter()
    wrong: list[Finding] = []
    with operator_connection() as conn, Repairer() if repair else nullcontext() as repairer:
        artifacts = keeping.artifacts(
            conn, repair=repair, who=who, reason=reason or f"artifacts verify{' --repair' if repair else ''}"
        )
        with show.progress(quiet=as_json) as bar:
            task = bar.add_task("verify", total=None)
            for found in verify(store, artifacts, repairer.repair if repairer else None):
                counts[found.state.value] += 1
                bar.advance(task)
                if found.state not in GOOD:
                    wrong.append(found)
    rows = [{"job": found.job, "kind": found.kind, "state": found.state} for found in wrong]
    if as_json:
        show.tell_json({"counts": counts, "wrong": rows})
    else:
        show.tell_rows(rows, ("job", "kind", "state"), as_json=False, none="nothing is wrong")
        typer.echo(", ".join(f"{count} {state}" for state, count in counts.items()) or "no succeeded jobs")
    if wrong:
        raise typer.Exit(TROUBLE)
