"""Batches: `POST /v1/batches` of 1,000 jobs, one after the other, beside COPY of the very same rows.

- oncommit: one keep-alive client, one portal process; each 202 is a commit on disk.
- COPY: the rows that acceptance writes (jobs, events, intents, request, batch) by COPY in text form, one
  transaction for each 1,000 jobs, on one connection; the text is made before the clock starts.
"""

import json
import time
import uuid
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial

import psycopg

from benchmarks.bench.contest import Entrance, Figure, Floor, Measure, Turn
from benchmarks.bench.ground import DIGEST, OURS, Ground
from benchmarks.bench.http_load import Client
from benchmarks.bench.measures.accept import FULL_BACKLOG, NO_LIMIT, empty, requests
from support.team import token_for

BATCH, BATCHES = 1_000, 20
COPIES = {
    "batches": "COPY batches (id, team, size, created_at) FROM STDIN",
    "jobs": "COPY jobs (id, team, batch, kind, document, priority, status, dispatch_no, attempt,"
    " max_attempts, created_at, updated_at, version) FROM STDIN",
    "events": "COPY job_events (job, seq, type, at, who, data) FROM STDIN",
    "intents": "COPY outbox (message_id, queue, lane, priority, body) FROM STDIN",
    "requests": "COPY requests (team, key, fingerprint, batch, created_at) FROM STDIN",
}


def _rows() -> dict[str, bytes]:
    """Return the text of one batch, by table."""
    batch, now, ids = uuid.uuid4(), datetime.now(UTC).isoformat(), [uuid.uuid4() for _ in range(BATCH)]
    data = json.dumps(
        {
            "team": "acme",
            "kind": "page",
            "document": DIGEST,
            "priority": 5,
            "max_attempts": 5,
            "batch": str(batch),
        }
    )
    found = {
        "batches": f"{batch}\tacme\t{BATCH}\t{now}\n",
        "jobs": "".join(
            f"{j}\tacme\t{batch}\tpage\t{DIGEST}\t5\tqueued\t1\t0\t5\t{now}\t{now}\t1\n" for j in ids
        ),
        "events": "".join(f"{j}\t1\taccepted\t{now}\tbench\t{data}\n" for j in ids),
        "intents": "".join(f"acme|{j}.1\tpreviews\tacme\t5\t{_body(j)}\n" for j in ids),
        "requests": f"acme\t{batch}\t\\\\x{'66' * 32}\t{batch}\t{now}\n",
    }
    return {table: text.encode() for table, text in found.items()}


def _body(job: uuid.UUID) -> str:
    message_id = f"acme|{job}.1"
    return json.dumps(
        {
            "queue_name": "previews", "actor_name": "render_preview", "args": [str(job), 1], "kwargs": {},
            "options": {"redis_message_id": message_id, "version": 1}, "message_id": message_id,
            "message_timestamp": round(time.time() * 1000),
        },
        separators=(",", ":"),
    )  # fmt: skip


@contextmanager
def _copied(ground: Ground) -> Generator[Turn]:
    with ground.world() as world:
        world.team()
        count = ground.scaled(BATCHES, 2)

        def turn() -> Mapping[str, float]:
            empty(world)
            texts = [_rows() for _ in range(count)]
            with psycopg.connect(world.database.dsn()) as conn:
                began = time.perf_counter()
                for rows in texts:
                    for table, query in COPIES.items():
                        with conn.cursor().copy(query) as copy:  # type: ignore[arg-type]
                            copy.write(rows[table])
                    conn.commit()
                return {"rate": count * BATCH / (time.perf_counter() - began)}

        yield turn


@contextmanager
def _posted(ground: Ground) -> Generator[Turn]:
    with ground.world() as world:
        world.team()
        world.admin.execute(FULL_BACKLOG)
        token, _ = token_for(world.database, "acme")
        url, count = world.processes.portal(**OURS, **NO_LIMIT).url, ground.scaled(BATCHES, 2)
        jobs = [{"document": DIGEST, "kind": "page", "priority": 5}] * BATCH
        asked = requests("/v1/batches", token, json.dumps({"jobs": jobs}).encode())

        def turn() -> Mapping[str, float]:
            empty(world)
            client = Client(url)
            began = time.perf_counter()
            statuses = {client.ask(next(asked)) for _ in range(count)}
            took = time.perf_counter() - began
            client.socket.close()
            if statuses != {202}:
                raise RuntimeError(f"answers: {statuses}")
            return {"rate": count * BATCH / took}

        yield turn


def _entrances(ground: Ground) -> Mapping[str, Entrance]:
    return {"oncommit": partial(_posted, ground), "COPY": partial(_copied, ground)}


MEASURES = [
    Measure(
        "batches",
        f"POST /v1/batches of {BATCH:,} jobs, one after the other",
        [Figure("rate", "jobs/s")],
        [Floor("rate", "oncommit", "COPY", 0.3)],
        _entrances,
    )
]
