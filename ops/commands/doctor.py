"""`oncommit doctor`: is everything as it must be, and if not, what to do."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

import psycopg
import typer
from psycopg import Connection
from rich.console import Console
from rich.text import Text

from db import catalog
from db.pool import connect
from ops import show
from ops.commands.who import AsJson
from ops.diagnose_postgres import clock_checks, migration_checks, role_checks, server_checks, work_checks
from ops.diagnose_redis import redis_checks
from ops.diagnose_stream import plugin_checks, publication_checks, slot_checks
from ops.diagnosis import Finding, Level, examine, fail
from ops.exit_codes import TROUBLE
from runtime.logs import redact
from runtime.settings import Settings, settings

STYLES = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red", Level.SKIP: "dim"}


def doctor(as_json: AsJson = False) -> None:
    """Check PostgreSQL, the roles, the stream, Redis, the clocks, and whether work moves.

    Each line is ok, warn, fail, or skip where this connection may not look; as oncommit_operator nearly
    everything is seen, the decoder only as oncommit_relay or a superuser. Exit code 1 when anything failed.

    Example: oncommit doctor --json
    """
    findings: list[Finding] = []
    for found in findings_of(settings()):
        findings.append(found)
        if not as_json:
            tell(found)
    failed = any(found.level is Level.FAIL for found in findings)
    counts = Counter(found.level.value for found in findings)
    if as_json:
        show.tell_json({"ok": not failed, "counts": counts, "checks": [asdict(found) for found in findings]})
    else:
        typer.echo(", ".join(f"{counts[level]} {level}" for level in Level))
    if failed:
        raise typer.Exit(TROUBLE)


def findings_of(given: Settings) -> Iterator[Finding]:
    """Yield every finding, PostgreSQL's first."""
    yield from _postgres(given)
    yield from redis_checks(given)


def _postgres(given: Settings) -> Iterator[Finding]:
    try:
        conn = connect(given.database_url.get_secret_value(), "oncommit doctor")
    except psycopg.Error as error:
        first = (str(error).strip().splitlines() or ["no answer"])[0]
        yield fail("PostgreSQL", redact(first), "check ONCOMMIT_DATABASE_URL, and that the server runs")
        return
    with conn:
        server = catalog.server(conn)
        yield from server_checks(server)
        if server.standby:
            return
        yield from examine(
            [
                ("migrations", partial(migration_checks, conn)),
                ("roles", partial(role_checks, conn, given.replication_url is not None)),
                ("decoder", partial(_decoder, conn, server, given)),
                ("publication", partial(publication_checks, conn, given)),
                ("slot", partial(slot_checks, conn, given)),
                ("work", partial(work_checks, conn)),
                ("clock of PostgreSQL", partial(clock_checks, conn)),
            ]
        )


def _decoder(conn: Connection[Any], server: catalog.Server, given: Settings) -> Iterator[Finding]:
    """Check as the role that streams, where its URL is known."""
    if given.replication_url is None:
        yield from plugin_checks(conn, server, given)
        return
    with connect(given.replication_url.get_secret_value(), "oncommit doctor") as streaming:
        yield from plugin_checks(streaming, catalog.server(streaming), given)


def tell(found: Finding) -> None:
    """Print one finding, and its advice below it."""
    console = Console(soft_wrap=True)
    line = Text(f"{found.level:<4}", style=STYLES[found.level])
    line.append(f"  {found.check}: ", style="bold")
    line.append(show.printable(found.detail), style="default")
    console.print(line)
    if found.advice:
        console.print(Text(f"      -> {show.printable(found.advice)}"))
