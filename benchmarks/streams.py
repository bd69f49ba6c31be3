"""Streams: 1,000 open at one time on one portal, what they cost, and that each one ends.

`python -m benchmarks.streams [--streams 1000]`; exit 1 unless every stream showed its job's acceptance, got a
heartbeat, was told the end and then ended, and the cost stayed within its bounds.
"""

import argparse
import asyncio
import os
import platform
import resource
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import psycopg
from rich.console import Console
from rich.table import Table

from ops.stack import Stack, StackPlan
from portal.event_routes import HEARTBEAT_SECONDS
from portal.streams import TICK_SECONDS, TOKEN_SECONDS

STREAMS = 1_000
#: A stream may cost so much memory, bytes; a watch, a task, two coroutine frames, a socket and its buffers.
BYTES_A_STREAM = 100_000
#: One question a tick for the events of all, and one for all tokens, each after the pool's own whether the
#: connection lives; 2 for what else changed since the count before.
QUERIES_A_SECOND = 2 * (1 / TICK_SECONDS + 1 / TOKEN_SECONDS) + 2
#: Counted for so long, with none open and with all, seconds. Nobody asks anything, and yet there are 1 to 3
#: transactions a second, in lumps: autovacuum alone makes some 20 at once, each minute. Of an idle database,
#: looked at for 150 s, any 15 s had 1.3 to 3.0 a second, with a lump or without, and any 45 s 1.4 to 1.9.
COUNTED_SECONDS = 45.0
#: A session of PostgreSQL tells what it has counted up to 10 s after it fell idle (PGSTAT_IDLE_INTERVAL):
#: a second after the opening, some 155 of its transactions were yet to come, 3.4 a second of the window.
TOLD_SECONDS = 12.0
OK = b"HTTP/1.1 200 OK"
OPENING, CANCELLING = 50, 8  # at a time
PATIENCE_SECONDS = 120.0

TRANSACTIONS = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"


@dataclass(slots=True)
class Followed:
    """One stream: its job, what came, and when (seconds of the monotonic clock)."""

    job: str
    events: list[str] = field(default_factory=list[str])
    heartbeats: int = 0
    refused: int = 0
    asked: float = 0.0
    told: float = 0.0
    ended: bool = False
    first: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True)
class Cost:
    """Resident bytes before, with all open, and after; transactions a second before and with all open."""

    before: int
    open: int = 0
    after: int = 0
    idle_rate: float = 0.0
    open_rate: float = 0.0


async def follow(url: str, token: str, one: Followed) -> None:
    """Read the job's stream to its end; ask again while the portal says that it cannot now."""
    while not one.ended and await _read(url, token, one) != OK:
        one.refused += 1
        await asyncio.sleep(1.0)


async def _read(url: str, token: str, one: Followed) -> bytes:
    """Read the stream; return the status line."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        writer.write(
            f"GET /v1/jobs/{one.job}/events HTTP/1.1\r\nHost: {parts.netloc}\r\n"
            f"Authorization: Bearer {token}\r\nAccept: text/event-stream\r\n\r\n".encode()
        )
        status = (await reader.readline()).strip()
        while status == OK and (line := await reader.readline()):
            if line.startswith(b"event: "):
                one.events.append(line[7:].decode().strip())
                one.told = time.monotonic()
                one.first.set()
            elif line == b":\n":
                one.heartbeats += 1
            elif line == b"0\r\n":  # the last chunk
                one.ended = True
                break
        return status
    finally:
        writer.close()


async def rate(conn: psycopg.AsyncConnection[tuple[int]], seconds: float) -> float:
    """Return the database's transactions a second, counted for so long."""

    async def count() -> int:
        row = await (await conn.execute(TRANSACTIONS)).fetchone()
        assert row is not None
        return row[0]

    before, started = await count(), time.monotonic()
    await asyncio.sleep(seconds)
    return (await count() - before) / (time.monotonic() - started)


async def jobs(portal: httpx.AsyncClient, count: int) -> list[str]:
    """Have so many jobs that wait; return their ids."""
    put = await portal.put("/v1/documents", content=b"# Followed by many\n")
    document = put.raise_for_status().json()["document"]
    batch = await portal.post(
        "/v1/batches",
        json={"jobs": [{"document": document, "kind": "page"}] * count},
        headers={"Idempotency-Key": "streams"},
    )
    found: list[str] = []
    query = {"batch": batch.raise_for_status().json()["id"], "limit": "100"}
    while True:
        page = (await portal.get("/v1/jobs", params=query)).raise_for_status().json()
        found += [job["id"] for job in page["jobs"]]
        if page["next"] is None:
            return found
        query["cursor"] = page["next"]


async def measure(stack: Stack, count: int) -> tuple[list[Followed], Cost]:
    """Open all streams, let them be for some heartbeats, end all jobs; return what was seen."""
    url, process = stack.portals[0], psutil.Process(stack.pids()["portal-1"])
    dsn = stack.reach.parts["operator"]
    headers = {"Authorization": f"Bearer {stack.token}"}
    async with (
        httpx.AsyncClient(base_url=url, headers=headers, timeout=60, trust_env=False) as portal,
        await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn,
        asyncio.TaskGroup() as group,
    ):
        streams = [Followed(job) for job in await jobs(portal, count)]
        cost = Cost(process.memory_info().rss)
        cost.idle_rate = await rate(conn, COUNTED_SECONDS)
        for start in range(0, count, OPENING):
            for one in streams[start : start + OPENING]:
                group.create_task(follow(url, stack.token, one))
            async with asyncio.timeout(PATIENCE_SECONDS):
                await asyncio.gather(*(one.first.wait() for one in streams[start : start + OPENING]))
        await asyncio.sleep(TOLD_SECONDS)  # what opening cost is not what open streams cost
        cost.open_rate = await rate(conn, COUNTED_SECONDS)
        cost.open = process.memory_info().rss
        turns = asyncio.Semaphore(CANCELLING)

        async def end(one: Followed) -> None:
            async with turns:
                one.asked = time.monotonic()
                (await portal.post(f"/v1/jobs/{one.job}/cancel")).raise_for_status()

        await asyncio.gather(*(end(one) for one in streams))
    cost.after = process.memory_info().rss
    return streams, cost


def faults(streams: list[Followed], cost: Cost) -> list[str]:
    """Return what is not as it has to be."""
    found: list[str] = []
    if wrong := [one for one in streams if one.events != ["accepted", "cancelled"]]:
        found.append(f"{len(wrong)} streams did not show what happened: {wrong[0].events}")
    if quiet := sum(not one.heartbeats for one in streams):
        found.append(
            f"{quiet} streams had no heartbeat in {COUNTED_SECONDS:g} s, one each {HEARTBEAT_SECONDS:g}"
        )
    if open_still := sum(not one.ended for one in streams):
        found.append(f"{open_still} streams did not end after the last event")
    if (each := (cost.open - cost.before) / len(streams)) > BYTES_A_STREAM:
        found.append(f"a stream costs {each / 1e3:.0f} kB")
    if (more := cost.open_rate - cost.idle_rate) > QUERIES_A_SECOND:
        found.append(f"{more:.1f} queries a second for all streams")
    return found


def table(streams: list[Followed], cost: Cost) -> Table:
    """Return what was seen, for humans."""
    machine = f"{os.cpu_count()} x {platform.machine()}, load {os.getloadavg()[0]:.1f}"
    found = Table("what", "seen", title=f"{len(streams)} streams of one portal, {machine}")
    lags = [one.told - one.asked for one in streams]
    cuts = statistics.quantiles(lags, n=100)
    found.add_row("ended after the last event", f"{sum(one.ended for one in streams)} of {len(streams)}")
    found.add_row("refused at first (503)", str(sum(one.refused for one in streams)))
    found.add_row("heartbeats", str(sum(one.heartbeats for one in streams)))
    found.add_row("memory of a stream", f"{(cost.open - cost.before) / len(streams) / 1e3:.1f} kB")
    for name, size in (("before", cost.before), ("with all open", cost.open), ("after", cost.after)):
        found.add_row(f"the portal's memory {name}", f"{size / 1e6:.1f} MB")
    found.add_row("transactions a second, none open", f"{cost.idle_rate:.1f}")
    found.add_row("transactions a second, all open", f"{cost.open_rate:.1f}")
    found.add_row(
        "from cancel to its event: median, p99, max", f"{cuts[49]:.1f}, {cuts[98]:.1f}, {max(lags):.1f} s"
    )
    return found


def main() -> int:
    """Measure; return 0 when all is as it has to be."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streams", description=__doc__)
    parser.add_argument("--streams", type=int, default=STREAMS, help="at least 2")
    count = parser.parse_args().streams
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a descriptor for each stream, here as there
    console = Console(highlight=False, soft_wrap=True)
    with tempfile.TemporaryDirectory(prefix="oncommit-streams-") as folder:
        Path(folder).chmod(0o711)  # the servers' account enters it
        plan = StackPlan(home=Path(folder, "home"), portals=1, workers=0)
        with Stack(plan, say=lambda text: console.print(text, style="dim")) as stack:
            streams, cost = asyncio.run(measure(stack, count))
    console.print(table(streams, cost))
    found = faults(streams, cost)
    for fault in found:
        console.print(f"NOT as it has to be: {fault}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
