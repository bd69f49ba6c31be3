"""Acceptance: `POST /v1/jobs` by 32 keep-alive clients, one portal process.

- oncommit: `python -m portal`, as production runs it; each 202 is a commit on disk. Its limit of requests a
  second for one team is raised out of the way.
- FastAPI, 202 only: the same route and headers, no database; uvicorn with uvloop and httptools.
- FastAPI, 202 only, h11: the same on uvloop and h11, which serves all that the portal does not read itself.
- one statement a request: the same application executing the statement of acceptance for each request.
- pgbench: the statement itself, `pgbench -M prepared -c 32 -j 2`, no HTTP.

The clients are one thread that costs some 20 us a request on the same cores. Turns begin with empty tables.
"""

import itertools
import json
import re
import subprocess
import sys
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from benchmarks.bench.contest import Entrance, Figure, Floor, Measure, Turn
from benchmarks.bench.ground import DIGEST, OURS, Ground, World, until
from benchmarks.bench.http_load import load
from ops.ports import free_port
from support.raw_http import request_head
from support.team import token_for

CLIENTS = 32
SECONDS = 2.0
#: A team's limit is no part of what is measured.
NO_LIMIT = {"ONCOMMIT_TEAM_REQUESTS_PER_SECOND": "1000000000"}
BODY = json.dumps({"document": DIGEST, "kind": "page", "priority": 5}).encode()
STATEMENT = f"""
SELECT outcome FROM accept_jobs('acme', gen_random_uuid()::text, '\\x{"66" * 32}'::bytea, NULL, false,
  ARRAY[gen_random_uuid()], ARRAY['page'], ARRAY['{DIGEST}'], ARRAY[NULL]::text[], ARRAY[5]::smallint[],
  ARRAY[NULL]::int[], ARRAY[NULL]::text[], NULL, 'pgbench');
"""
# The trigger refuses it, as it should: only a superuser's replica session gets around.
EMPTY = """
SET session_replication_role = replica;
TRUNCATE jobs, job_events, outbox, requests, batches;
SET session_replication_role = origin;
"""
FULL_BACKLOG = "UPDATE teams SET max_backlog = 2000000000"
TPS = re.compile(r"^tps = ([0-9.]+)", re.MULTILINE)


def requests(path: str, token: str, body: bytes = BODY) -> Iterator[bytes]:
    """Yield requests, each with a key of its own."""
    headers = [(b"Content-Type", b"application/json"), (b"Idempotency-Key", b"THE-KEY")]
    before, after = request_head("POST", path, token, headers, body).split(b"THE-KEY")
    run = uuid.uuid4().hex.encode()
    for number in itertools.count():
        yield b"%s%s-%d%s" % (before, run, number, after)


def empty(world: World) -> None:
    """Let every turn begin with empty tables."""
    for statement in EMPTY.strip().splitlines():
        world.admin.execute(statement)  # type: ignore[arg-type]


def http_turn(ground: Ground, world: World, url: str, token: str) -> Mapping[str, float]:
    """Load a server for some seconds."""
    empty(world)
    seen = load(url, requests("/v1/jobs", token), clients=CLIENTS, seconds=max(2.0, SECONDS * ground.size))
    if seen.statuses.keys() != {202}:
        raise RuntimeError(f"answers: {seen.statuses}")
    return {"rate": seen.rate}


@contextmanager
def portal(ground: Ground) -> Generator[Turn]:
    """Ours."""
    with ground.world() as world:
        world.team()
        world.admin.execute(FULL_BACKLOG)
        token, _ = token_for(world.database, "acme")
        url = world.processes.portal(**OURS, **NO_LIMIT).url
        yield partial(http_turn, ground, world, url, token)


@contextmanager
def uvicorn(app: str, options: tuple[str, ...], ground: Ground) -> Generator[Turn]:
    """Serve one of the rivals' applications."""
    with ground.world() as world:
        world.team()
        port = str(free_port())
        argv = [
            sys.executable, "-m", "uvicorn", f"benchmarks.bench.rivals.http_apps:{app}", "--port", port,
            "--no-access-log", "--log-level", "warning", *options,
        ]  # fmt: skip
        url = f"http://127.0.0.1:{port}"
        env = {"RIVAL_DATABASE_URL": world.database.url("portal"), "ONCOMMIT_PORT": port}
        server = world.processes.start(app, argv, env)
        until(lambda: server.get("/openapi.json") == 200, 30)
        yield partial(http_turn, ground, world, url, "none")


def pgbench(
    ground: Ground, world: World, script: str, *options: str, role: str, clients: int, seconds: float
) -> float:
    """Run a script by pgbench; return transactions a second."""
    path = world.processes.folder / "pgbench.sql"
    path.write_text(script, encoding="utf-8")
    command = [
        ground.program("wal2json", "pgbench"), "-n", "-M", "prepared", "-c", str(clients), "-j", "2",
        "-T", str(max(3, round(seconds))), "-f", str(path), *options, world.database.dsn(role),  # type: ignore[arg-type]
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)  # noqa: S603
    found = TPS.search(done.stdout)
    if found is None:
        raise RuntimeError(f"pgbench: {done.stderr.strip()[-300:] or 'no transaction'}")
    return float(found[1])


@contextmanager
def statement(ground: Ground) -> Generator[Turn]:
    """Run the statement alone."""
    with ground.world() as world:
        world.team()

        def turn() -> Mapping[str, float]:
            empty(world)
            rate = pgbench(
                ground, world, STATEMENT, role="portal", clients=CLIENTS, seconds=SECONDS * ground.size
            )
            return {"rate": rate}

        yield turn


def _entrances(ground: Ground) -> Mapping[str, Entrance]:
    standard, plain = ("--loop", "uvloop", "--http", "httptools"), ("--loop", "uvloop", "--http", "h11")
    found: dict[str, Callable[..., object]] = {
        "oncommit": partial(portal, ground),
        "FastAPI, 202 only": partial(uvicorn, "empty", standard, ground),
        "FastAPI, 202 only, h11": partial(uvicorn, "empty", plain, ground),
        "one statement a request": partial(uvicorn, "statement", standard, ground),
        "pgbench": partial(statement, ground),
    }
    return found  # type: ignore[return-value]


MEASURES = [
    Measure(
        "accept",
        f"POST /v1/jobs, one process, {CLIENTS} keep-alive clients",
        [Figure("rate", "jobs/s")],
        [
            Floor("rate", "oncommit", "FastAPI, 202 only", 1.1),
            Floor("rate", "oncommit", "FastAPI, 202 only, h11", None),
            Floor("rate", "oncommit", "one statement a request", 2.5),
            Floor("rate", "oncommit", "pgbench", 0.4),
        ],
        _entrances,
    )
]
