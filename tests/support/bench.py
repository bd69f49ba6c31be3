"""A team with documents, its jobs as the database sees them, and a relay of the tests' own."""

import contextlib
import hashlib
import json
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
from psycopg import sql
from redis.exceptions import RedisError

from broker.client import redis_client
from broker.lanes import Lanes, Limit, Outgoing, Token, TokenMismatch
from db import control, outbox
from db.errors import DatabaseError
from db.jobs import Event, EventType, JobState, JobStatus, fold
from runtime.blobs import BlobStore
from support.waiting import eventually

ACCEPT = """
SELECT outcome FROM accept_jobs(%s, %s, %s, %s, false, %s::uuid[], %s::text[], %s::text[], %s::text[],
                                %s::smallint[], %s::int[], %s::text[], NULL, 'test')
"""
ROW = """
SELECT status, dispatch_no, attempt, releases, worker, artifact, error_class,
       cancel_requested_at IS NOT NULL, version FROM jobs WHERE id = %s
"""


class Bench:
    """What a test does from outside of the workers, as the superuser."""

    def __init__(self, admin: psycopg.Connection[Any], blobs: Path) -> None:
        self.admin = admin
        self.blobs = BlobStore(blobs)
        self.jobs: list[UUID] = []

    def team(self, team: str = "acme", **settings: Any) -> str:
        self.admin.execute("SELECT create_team(%s, 'test')", [team])
        if settings:
            self.set_lane(team, **settings)
        return team

    def set_lane(self, lane: str, **settings: Any) -> None:
        self.admin.execute("SELECT set_lane(%s, %s, 'test', 'test')", [lane, json.dumps(settings)])

    def accept(
        self,
        count: int = 1,
        *,
        team: str = "acme",
        kind: str = "page",
        priority: int = 5,
        content: bytes = b"# Hello\n",
        max_attempts: int | None = None,
        **simulate: Any,
    ) -> list[UUID]:
        """Accept jobs for one document; keyword arguments are the simulated faults."""
        digest = self.blobs.put_bytes(content)
        self.admin.execute("INSERT INTO teams (id) VALUES (%s) ON CONFLICT DO NOTHING", [team])
        self.admin.execute(
            "INSERT INTO documents (team, digest, size) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING",
            [team, digest, len(content)],
        )
        ids = [uuid4() for _ in range(count)]
        key = hashlib.sha256(ids[0].bytes)
        row = self.admin.execute(
            ACCEPT,
            [
                team, key.hexdigest(), key.digest(), uuid4() if count > 1 else None, ids, [kind] * count,
                [digest] * count, [None] * count, [priority] * count, [max_attempts] * count,
                [json.dumps(simulate) if simulate else None] * count,
            ],
        ).fetchone()  # fmt: skip
        assert row == ("new",)
        self.jobs += ids
        return ids

    def cancel(self, job: UUID) -> str:
        row = self.admin.execute("SELECT cancel_job(NULL, %s, 'test', 'test')", [job]).fetchone()
        assert row is not None
        return str(row[0])

    def replay(self, job: UUID) -> None:
        self.admin.execute("SELECT replay_jobs(ARRAY[%s::uuid], 'test', 'test')", [job])

    def row(self, job: UUID) -> JobState:
        row = self.admin.execute(ROW, [job]).fetchone()
        assert row is not None
        return JobState(JobStatus(row[0]), *row[1:])

    def status(self, job: UUID) -> str:
        return str(self.row(job).status)

    def events(self, job: UUID) -> list[Event]:
        rows = self.admin.execute(
            "SELECT seq, type, at, who, data FROM job_events WHERE job = %s ORDER BY seq", [job]
        ).fetchall()
        return [Event(seq, EventType(kind), at, who, data) for seq, kind, at, who, data in rows]

    def types(self, job: UUID) -> list[str]:
        return [str(event.type) for event in self.events(job)]

    def intents(self) -> list[str]:
        rows = self.admin.execute("SELECT message_id FROM outbox ORDER BY id").fetchall()
        return [message_id for (message_id,) in rows]

    def check(self) -> None:
        """Check that every job's row is the fold of its events, and that its intent lives until the end."""
        living = set(self.intents())
        for job in self.jobs:
            state = self.row(job)
            assert fold(self.events(job)) == state
            row = self.admin.execute("SELECT team FROM jobs WHERE id = %s", [job]).fetchone()
            assert row is not None
            message_id = f"{row[0]}|{job}.{state.dispatch_no}"
            over = state.status in {JobStatus.SUCCEEDED, JobStatus.DEAD, JobStatus.CANCELLED}
            assert (message_id in living) is not over, state
            living.discard(message_id)
        assert not living, f"intents of past dispatches are left: {living}"

    def settled(self, jobs: Sequence[UUID] | None = None, *, timeout: float = 30.0) -> Counter[str]:
        """Wait until these jobs have ended; return how."""
        jobs = self.jobs if jobs is None else jobs

        def ended() -> Counter[str] | None:
            counts = Counter(self.status(job) for job in jobs)
            return counts if set(counts) <= {"succeeded", "dead", "cancelled"} else None

        found = eventually(ended, timeout=timeout, describe=lambda: {j: self.types(j) for j in jobs[:5]})
        self.check()
        return found


class Pump:
    """A relay without a WAL: publishes every living intent and every setting, again and again."""

    def __init__(self, dsn: str, url: str, namespace: str = "oncommit") -> None:
        self._dsn = dsn
        self._client = redis_client(url)
        self.lanes = Lanes(self._client, namespace)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.is_set():
            # Servers come and go in these tests; whatever happened, begin anew.
            with contextlib.suppress(psycopg.Error, DatabaseError, RedisError, TokenMismatch):
                self._reign()
            self._stopped.wait(0.1)

    def _reign(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as conn:
            epoch = control.next_epoch(conn)
            self.lanes.seize(epoch)
            token = Token(epoch, 0)
            while not self._stopped.wait(0.05):
                token = self._turn(conn, token)

    def _turn(self, conn: psycopg.Connection[Any], token: Token) -> Token:
        settings = control.latest(conn, "", 1000)
        ids = [head[0] for head in outbox.heads(conn, 0, 2**62, 500)]
        token, _ = self.lanes.publish(
            token,
            messages=[
                Outgoing(i.queue, i.message_id, i.lane, i.priority, i.id, i.delay_ms, i.body.encode())
                for i in outbox.intents(conn, ids)
            ],
            limits=[
                Limit(s.lane, s.version, s.max_running, s.weight, s.rate_per_second, s.burst, paused=s.paused)
                for s in settings
            ],
        )
        return token

    def close(self) -> None:
        self._stopped.set()
        self._thread.join(5)
        self._client.close()


def terminate_backends(admin: psycopg.Connection[Any], application: str) -> int:
    """Cut the sessions of an application."""
    query = sql.SQL(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        " WHERE application_name = {} AND datname = current_database()"
    )
    row = admin.execute(query.format(sql.Literal(application))).fetchone()
    assert row is not None
    return int(row[0])
