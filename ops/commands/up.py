"""`oncommit up`: the whole local stack in the foreground."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ops.commands.who import AsJson
from ops.signals import interrupt_on_termination
from ops.stack import Stack, StackPlan

HomeFolder = Annotated[Path, typer.Option("--home", help="its folder; kept between runs")]
Workers = Annotated[int, typer.Option(min=1, max=64, help="worker processes")]
Threads = Annotated[int, typer.Option(min=1, max=64, help="renders at one time in each worker")]
Portals = Annotated[int, typer.Option(min=1, max=16, help="portal processes, a port each")]


def up(
    home: HomeFolder = Path(".oncommit"),
    workers: Workers = 1,
    threads: Threads = 4,
    portals: Portals = 1,
    as_json: AsJson = False,
) -> None:
    """Start PostgreSQL, Valkey, portal, relay and workers, print how to reach them, and serve until Ctrl-C.

    ONCOMMIT_DATABASE_URL and ONCOMMIT_REDIS_URL name servers of your own; then none is started for them.
    Ctrl-C is its orderly end: exit code 0.

    Example: oncommit up --workers 2
    """
    interrupt_on_termination()
    plan = StackPlan(home=home, portals=portals, workers=workers, threads=threads)
    try:
        with Stack(plan, say=lambda text: typer.echo(text, err=True)) as stack:
            typer.echo(json.dumps(facts(stack)) if as_json else sentences(stack))
            stack.serve()
    except KeyboardInterrupt:
        typer.echo("stopped", err=True)


def variables(stack: Stack) -> dict[str, str]:
    """Return the variables with which clients and operators reach the stack."""
    return {
        "ONCOMMIT_URL": stack.portals[0],
        "ONCOMMIT_TOKEN": stack.token,
        "ONCOMMIT_DATABASE_URL": stack.reach.parts["operator"],
        "ONCOMMIT_REDIS_URL": stack.redis_url,
    }


def facts(stack: Stack) -> dict[str, Any]:
    """Return everything that a script may want to know: one JSON object."""
    binaries = stack.postgres.plan.binaries if stack.postgres else None
    return {
        "variables": variables(stack),
        "team": stack.team,
        "portals": stack.portals,
        "databases": {"owner": stack.reach.owner, **stack.reach.parts},
        "postgres": {"kind": binaries.kind, "major": binaries.major} if binaries else None,
        "pids": stack.pids(),
        "home": str(stack.home.path),
        "logs": str(stack.home.logs),
    }


def sentences(stack: Stack) -> str:
    """Return the same for humans, ready to be pasted into a shell."""
    exports = "\n".join(f"  export {name}='{value}'" for name, value in variables(stack).items())
    more = "".join(f"\n  another portal: {url}" for url in stack.portals[1:])
    return (
        f"oncommit is up. To reach it as team {stack.team}:\n{exports}{more}\n"
        f"Logs: {stack.home.logs}. Ctrl-C stops everything."
    )
