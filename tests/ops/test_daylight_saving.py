"""Clocks change while jobs wait for their retries: every view tells the same instants, every delay is exact.

No clock is set. Portal, operator and sessions of PostgreSQL have zones of POSIX's form, which say by
themselves when their clocks change: some seconds after the processes have started.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote
from uuid import UUID

import psycopg
import pytest
from psycopg import sql

from actors.decide import backoff
from broker.lanes import Lanes
from ops.following import Followed
from support.kinds import kinds
from support.postgres import Database
from support.processes import ROOT, Processes, Running
from support.team import Client, token_for
from support.valkey import Valkey
from support.waiting import eventually

#: Until the clocks change; a machine that is slower than that gets twice as long, and again.
LEAD_SECONDS = (20.0, 40.0, 80.0)
BASE_MINUTES, CAP_MINUTES = 10, 90
#: Delays grow to the longest with the fifth failure.
FAILURES = 5
#: Of what two clocks, or two looks one after the other, may differ by; an hour is 3,600.
CLOSE_SECONDS = 10.0
TEAM, QUEUE, NAMESPACE = "blue", "previews", "oncommit"
ROW = "SELECT created_at, updated_at, finished_at, not_before FROM jobs WHERE id = %s"
EVENTS = """
SELECT type::text, at, (data ->> 'not_before')::timestamptz FROM job_events WHERE job = %s ORDER BY seq
"""
INTENT = "SELECT message_id, not_before FROM outbox WHERE message_id LIKE '%%|' || %s || '.%%'"
BRING_FORWARD = "UPDATE outbox SET not_before = clock_timestamp() WHERE message_id = %s"
OFFSET = "SELECT extract(timezone FROM %s::timestamptz)::int"
INSTANT = re.compile(r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d")


def zone(hours: float, saved: float, change: datetime, *, forward: bool) -> str:
    """Return a zone so many hours ahead of UTC, whose clocks change by `saved` hours at `change`."""
    local = change + timedelta(hours=hours if forward else hours + saved)
    day = local.timetuple().tm_yday - 1
    here, other = f"{day}/{local:%H:%M:%S}", str((day + 150) % 365)
    start, end = (here, other) if forward else (other, here)
    return f"<STD>{_behind(hours)}<DST>{_behind(hours + saved)},{start},{end}"


def _behind(hours: float) -> str:
    """POSIX counts what a zone is behind UTC."""
    minutes = round(-hours * 60)
    return f"{'-' if minutes < 0 else ''}{abs(minutes) // 60}:{abs(minutes) % 60:02}"


@dataclass(frozen=True)
class House:
    """Portal, relay and worker, each in a zone of its own, and an operator."""

    database: Database
    portal: Running
    relay: Running
    worker: Running
    client: Client
    operator: dict[str, str]

    def oncommit(self, *arguments: str) -> Any:
        """Run the command with --json, and return what it said."""
        command = [sys.executable, "-m", "ops.cli", *arguments, "--json"]
        done = subprocess.run(command, env=self.operator, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def stop(self) -> None:
        for running in (self.worker, self.relay, self.portal):
            running.stop()
        self.client.http.close()


def house(database: Database, processes: Processes, new_york: str, lord_howe: str) -> House:
    """Start everything."""
    # Those who name no zone get this one, and for those of oncommit the URL has the last word.
    name = sql.Identifier(database.name)
    database.admin.execute(sql.SQL("ALTER DATABASE {} SET timezone = {}").format(name, lord_howe))
    session = f"?options={quote(f'-c timezone={lord_howe}')}"
    backoffs = {
        "ONCOMMIT_BACKOFF_BASE_MS": str(BASE_MINUTES * 60_000),
        "ONCOMMIT_BACKOFF_CAP_MS": str(CAP_MINUTES * 60_000),
    }

    def given(role: Any, zone: str) -> dict[str, str]:
        return {"ONCOMMIT_DATABASE_URL": database.url(role) + session, "TZ": zone}

    relay = processes.relay(ready=False, TZ=lord_howe)
    worker = processes.worker(ready=False, threads=1, **given("worker", "Asia/Kolkata"), **backoffs)
    portal = processes.portal(ready=False, **given("portal", new_york))
    for running in (relay, worker, portal):
        running.wait_ready(timeout=60)
    operator = processes.environment("operator", given("operator", new_york))
    environment = {**os.environ, **operator, "PYTHONPATH": str(ROOT)}
    client = Client(database, portal.url, TEAM, token_for(database, TEAM)[0])
    return House(database, portal, relay, worker, client, environment)


def failures(database: Database, job: UUID) -> list[tuple[datetime, datetime]]:
    """Return when it failed, and until when it waits, each time."""
    rows = database.admin.execute(EVENTS, [job]).fetchall()
    return [(at, due) for kind, at, due in rows if kind == "failed"]


def bring_forward(database: Database, valkey: Valkey, job: UUID) -> None:
    """Make its retry due, in PostgreSQL; Redis, which knows the old time, is made anew from there."""
    row = database.admin.execute(INTENT, [str(job)]).fetchone()
    assert row is not None
    database.admin.execute(BRING_FORWARD, [row[0]])
    valkey.client.flushall()


def fail(there: House, valkey: Valkey, times: int) -> UUID:
    """Have a job that fails so many times, and waits for its next try."""
    job = UUID(there.client.job(simulate={"fail_first": times}, max_attempts=10)["id"])
    for n in range(1, times + 1):
        eventually(lambda n=n: len(failures(there.database, job)) == n, timeout=60)  # type: ignore[misc]
        if n < times:
            bring_forward(there.database, valkey, job)
    return job


def instants(value: Any) -> Iterator[datetime]:
    """Yield every time in a piece of JSON, and see that it carries its offset."""
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from instants(each)
    elif isinstance(value, str) and INSTANT.match(value):
        found = datetime.fromisoformat(value)
        assert found.utcoffset() is not None, value
        yield found


def seconds(value: Any) -> Iterator[float]:
    """Yield every duration in a piece of JSON."""
    if isinstance(value, dict):
        for name, each in value.items():
            if name.endswith("seconds") and each is not None:
                yield each
            yield from seconds(each)
    elif isinstance(value, list):
        for each in value:
            yield from seconds(each)


def stream(client: Client, job: UUID) -> list[Any]:
    """Return what the stream of a job that has ended sends."""
    answer = client.http.get(f"/v1/jobs/{job}/events", headers={"Accept": "text/event-stream"})
    return [json.loads(line[5:]) for line in answer.text.splitlines() if line.startswith("data:")]


def look(there: House, job: UUID, elapsed: float) -> None:
    """See that every view of a job that has ended tells the instants that PostgreSQL knows."""
    row = there.database.admin.execute(ROW, [job]).fetchone()
    events = there.database.admin.execute(EVENTS, [job]).fetchall()
    assert row is not None
    known = {at for at in (*row, *(e[1] for e in events), *(e[2] for e in events)) if at is not None}
    http = there.client.http
    told = http.get(f"/v1/jobs/{job}").json()
    pages = http.get(f"/v1/jobs/{job}/events").json()["events"]
    views = {
        "job": told,
        "jobs": [one for one in http.get("/v1/jobs").json()["jobs"] if one["id"] == str(job)],
        "events": pages,
        "stream": stream(there.client, job),
        "jobs show": there.oncommit("jobs", "show", str(job)),
        "jobs list": [one for one in there.oncommit("jobs", "list") if one["id"] == str(job)],
    }
    for name, view in views.items():
        found = list(instants(view))
        assert len(found) >= 3, (name, view)
        assert set(found) <= known, (name, view)
    for view in (pages, views["stream"], views["jobs show"]["events"]):
        order = [datetime.fromisoformat(event["at"]) for event in view]
        assert order == [at for _, at, _ in events] == sorted(order)
    took = Followed.of(told).seconds
    assert took == (row[2] - row[0]).total_seconds()
    assert 0 < took < elapsed


def close_to_redis(database: Database, valkey: Valkey, jobs: list[UUID]) -> None:
    """See that Redis lets the jobs' retries wait until the instants that PostgreSQL knows."""
    found = dict(row for job in jobs for row in database.admin.execute(INTENT, [str(job)]).fetchall())
    waiting = Lanes(valkey.client, NAMESPACE)

    def delayed() -> dict[str, float]:
        told: Any = valkey.client.zrange(f"{NAMESPACE}:{QUEUE}:delayed", 0, -1, withscores=True)
        return {name.decode(): score / 1000 for name, score in told}

    eventually(lambda: found.keys() <= delayed().keys())
    scores, next_due_ms = delayed(), waiting.stats(QUEUE).next_due_ms
    assert next_due_ms is not None
    script_now = min(scores.values()) - next_due_ms / 1000
    for name, due in found.items():
        left = (due - datetime.now(UTC)).total_seconds()
        assert abs(scores[name] - script_now - left) < CLOSE_SECONDS


def changes(zone: str, change: datetime) -> int:
    """Return by how many seconds the clocks of a process change then."""
    asked = "import sys, time; print(*(time.localtime(float(at)).tm_gmtoff for at in sys.argv[1:]))"
    moments = [str((change + timedelta(seconds=by)).timestamp()) for by in (-1, 1)]
    command = [sys.executable, "-c", asked, *moments]
    done = subprocess.run(command, env={**os.environ, "TZ": zone}, capture_output=True, check=True)
    before, after = map(int, done.stdout.split())
    return after - before


def session_changes(database: Database, zone: str, change: datetime) -> int:
    """Return by how many seconds the clocks of a session change then."""
    with psycopg.connect(database.dsn(), options=f"-c timezone={zone}") as conn:
        found = [conn.execute(OFFSET, [change + timedelta(seconds=by)]).fetchone() for by in (-1, 1)]
    [before, after] = [row[0] for row in found if row is not None]
    return int(after - before)


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("session_server", "forward"),
    [(kinds()[0][0], False), (kinds()[0][-1], True)],
    ids=["fall back", "spring forward"],
    indirect=["session_server"],
)
def test_clocks_that_change_change_no_instant_no_order_and_no_delay(
    database: Database, processes: Processes, valkey: Valkey, forward: bool
) -> None:
    for lead in LEAD_SECONDS:
        began, change = time.monotonic(), datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=lead)
        new_york = zone(-5, 1, change, forward=forward)
        lord_howe = zone(10.5, 0.5, change, forward=forward)
        there = house(database, processes, new_york, lord_howe)
        expired, _ = token_for(database, TEAM, expires_at=(change + timedelta(seconds=1)).isoformat())
        made_at = datetime.now(UTC)
        a_day = there.oncommit("tokens", "create", "--team", TEAM, "--expires-days", "1")
        often = fail(there, valkey, FAILURES)
        once = fail(there, valkey, 1)
        if (now := datetime.now(UTC)) < change:
            break
        there.stop()
    assert now < change, "the machine is too slow for any of it"
    direction = 1 if forward else -1
    assert changes(new_york, change) == direction * 3600
    assert session_changes(database, lord_howe, change) == direction * 1800

    for job, times in ((often, FAILURES), (once, 1)):
        for nth, (at, due) in enumerate(failures(database, job), 1):
            wait = backoff(nth, f"{TEAM}|{job}.{nth}", BASE_MINUTES * 60_000, CAP_MINUTES * 60_000)
            assert due - at == timedelta(milliseconds=wait), f"failure {nth} of {times}"
    assert failures(database, often)[-1][1] > change + timedelta(minutes=CAP_MINUTES / 2 - 2)
    close_to_redis(database, valkey, jobs=[often, once])
    answered = there.client.http.get("/v1/jobs", headers={"Authorization": f"Bearer {expired}"}).status_code
    assert answered == 200 or datetime.now(UTC) > change
    made = datetime.fromisoformat(a_day["expires_at"])
    assert abs(made - made_at - timedelta(days=1)).total_seconds() < CLOSE_SECONDS

    eventually(lambda: datetime.now(UTC) > change + timedelta(seconds=2), timeout=max(LEAD_SECONDS))
    refused = {"Authorization": f"Bearer {expired}"}
    eventually(lambda: there.client.http.get("/v1/jobs", headers=refused).status_code == 401)
    assert there.client.http.get("/v1/jobs").status_code == 200
    close_to_redis(database, valkey, jobs=[often, once])
    assert [len(failures(database, job)) for job in (often, once)] == [FAILURES, 1], "none came early"

    for job in (often, once):
        bring_forward(database, valkey, job)
    for job in (often, once):
        eventually(lambda j=job: there.client.http.get(f"/v1/jobs/{j}").json()["status"] == "succeeded")  # type: ignore[misc]
    elapsed = time.monotonic() - began
    for job in (often, once):
        look(there, job, elapsed)
    state = there.oncommit("dispatch", "status", "--all")
    assert all(0 <= found < elapsed for found in seconds(state)), state
    plan = there.oncommit("prune", "--older-than", "30m", "--dry-run")
    assert plan["jobs"] == 0
    half_an_hour_ago = datetime.now(UTC) - timedelta(minutes=30)
    [before] = instants(plan)
    assert abs(before - half_an_hour_ago).total_seconds() < CLOSE_SECONDS
    for running in (there.portal, there.relay, there.worker):
        logged = [datetime.fromisoformat(line["timestamp"]) for line in running.log_lines()]
        assert logged
        assert max(logged) - min(logged) < timedelta(seconds=elapsed + CLOSE_SECONDS)
