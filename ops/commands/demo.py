"""`oncommit demo`: the recovery reproduction."""

import json
import time
from collections.abc import Callable, Sequence
from typing import Annotated

import typer
from rich.console import Console

from ops.commands.who import AsJson
from ops.demo.claims import Act, facts, table
from ops.exit_codes import INTERRUPTED, TROUBLE
from ops.signals import interrupt_on_termination

# A pipe has no width, and a table cut to the 80 columns that are made up for it would lose words.
PIPE_COLUMNS = 140

Jobs = Annotated[int, typer.Option(min=10, max=2000, help="in each of the two large acts")]


def demo(jobs: Jobs = 200, *, as_json: AsJson = False) -> None:
    """Show what happens when Redis is lost: before, and with oncommit. Needs no setup and keeps nothing.

    It starts servers of its own in a temporary folder, and kills only those. Exit code 0 when everything
    that it claims was measured to be so, else 1.

    Example: oncommit demo --jobs 50
    """
    interrupt_on_termination()
    started = time.monotonic()
    try:
        acts = perform(jobs, lambda text: typer.echo(text, err=True))
    except KeyboardInterrupt:
        typer.echo("stopped", err=True)
        raise typer.Exit(INTERRUPTED) from None
    if not tell(acts, time.monotonic() - started, as_json=as_json):
        raise typer.Exit(TROUBLE)


def tell(acts: Sequence[Act], seconds: float, *, as_json: bool) -> bool:
    """Print what was measured; return whether everything held."""
    told = facts(acts) | {"seconds": round(seconds, 3)}
    if as_json:
        typer.echo(json.dumps(told))
    else:
        console = Console()
        if not console.is_terminal:
            console = Console(width=PIPE_COLUMNS)
        console.print(table(acts))
        console.print(
            f"{'Everything held' if told['held'] else 'NOT everything held'}, {seconds:.0f} s in all."
        )
    return bool(told["held"])


def perform(jobs: int, say: Callable[[str], None]) -> list[Act]:
    """Perform the four acts on one stage; return them.

    Raises:
        StartError, NoServerError, ...: as `Stack.start` does.

    """
    # Not at the top: Dramatiq and redis-py take a quarter of a second that no other command needs.
    from ops.demo.after import everything_flushed, redis_dies  # noqa: PLC0415
    from ops.demo.before import before  # noqa: PLC0415
    from ops.demo.failed_commit import commit_fails  # noqa: PLC0415
    from ops.demo.stage import staged  # noqa: PLC0415

    say("setting the stage: servers of its own in a temporary folder")
    with staged(say) as stage:
        acts: list[Act] = []

        def perform_one(act: Act) -> None:
            acts.append(act)
            say(f"{len(acts)}. {act.name}: {'held' if act.held else 'DID NOT HOLD'}, {act.seconds:.1f} s")

        perform_one(before(stage))
        perform_one(redis_dies(stage, jobs))
        perform_one(commit_fails(stage))
        perform_one(everything_flushed(stage, jobs))
    return acts
