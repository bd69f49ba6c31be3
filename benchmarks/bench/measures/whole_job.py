"""Whole jobs: from claim to finish, a render that does nothing, out of a backlog of 20,000; 1 process x 8.

- oncommit: its worker process of 8 threads with every claim, event, finish and acknowledgement of
  production, and the preview in the store; the renderer does nothing, in the thread. A relay runs, too.
- procrastinate: one worker, concurrency 8, a coroutine; its jobs and events stay in its tables.
- dramatiq-postgres: one process of 8 threads, no result backend; claims as many rows as it prefetches (16),
  an acknowledgement deletes the row. It keeps no history.
- faststream-outbox: 8 workers in one process, 500 rows a fetch, 100 ends a statement; a row is deleted at its
  end, no history. It may run a job again that it had ended, should it die before the flush.
- pgbench: our claim and finish statements, one job each, 8 connections, nothing else.
- pgbench, arrays of 16: the same two statements for 16 jobs at a time.
"""

import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from uuid import uuid4

from benchmarks.bench.backlog import Worker
from benchmarks.bench.contest import Entrance, Figure, Floor, Measure, Turn
from benchmarks.bench.ground import DIGEST, OURS, Ground, World, until
from benchmarks.bench.measures.accept import empty, pgbench
from support.processes import Running

THREADS, BATCH = 8, 5_000
UNFINISHED = "SELECT count(*) FROM jobs WHERE status IN ('queued', 'processing', 'retrying')"
FILL_DRAMATIQ = """
INSERT INTO dramatiq.queue (queue_name, message_id, state, message)
SELECT 'default', id, 'queued', jsonb_build_object('queue_name', 'default', 'actor_name', 'nothing',
         'args', jsonb_build_array(1), 'kwargs', '{}'::jsonb, 'options', '{}'::jsonb, 'message_id', id,
         'message_timestamp', (extract(epoch FROM now()) * 1000)::bigint)
  FROM (SELECT gen_random_uuid() AS id FROM generate_series(1, %s)) AS ids
"""
FILL_PROCRASTINATE = """
INSERT INTO procrastinate_jobs (queue_name, task_name, args)
SELECT 'default', 'nothing', '{"number": 1}' FROM generate_series(1, %s)
"""
FILL_FASTSTREAM = """
INSERT INTO faststream_outbox (queue, payload, headers)
SELECT 'jobs', '1'::bytea,
       jsonb_build_object('content-type', 'application/json', 'correlation_id', gen_random_uuid())
  FROM generate_series(1, %s)
"""
# Ids that a script can make again, so that it need not look them up. Without the events of acceptance, which
# nobody reads here, and without the checks of foreign keys.
FILL_PGBENCH = (
    "SET session_replication_role = replica",
    """
    INSERT INTO jobs (id, team, kind, document, priority, status, dispatch_no, attempt, max_attempts,
                      created_at, updated_at, version)
    SELECT md5(n::text)::uuid, 'acme', 'page', %(digest)s, 5, 'queued', 1, 0, 5, now(), now(), 1
      FROM generate_series(0, %(last)s) AS n
    """,
    """
    INSERT INTO outbox (message_id, queue, lane, priority, body)
    SELECT preview_message_id('acme', id, 1), 'previews', 'acme', 5,
           preview_message(preview_message_id('acme', id, 1), 'previews', id, 1, NULL, now())
      FROM jobs
    """,
    "SET session_replication_role = origin",
    "ANALYZE jobs, outbox",
)
WORKER = uuid4()
SCRIPT = f"""
\\set i :i + 1
\\set first :client_id * :each + :i * {{size}}
SELECT count(*) FROM claim_jobs('{WORKER}',
  ARRAY(SELECT md5(n::text)::uuid FROM generate_series(:first, :first + {{size}} - 1) AS n),
  array_fill(1, ARRAY[{{size}}])) WHERE outcome = 'taken' \\gset
SELECT count(*) FROM finish_each('{WORKER}',
  ARRAY(SELECT md5(n::text)::uuid FROM generate_series(:first, :first + {{size}} - 1) AS n),
  array_fill(1, ARRAY[{{size}}]), array_fill(1, ARRAY[{{size}}]),
  array_fill('{DIGEST}'::text, ARRAY[{{size}}]), array_fill(1::bigint, ARRAY[{{size}}]));
"""
FINISHED = "SELECT count(*) FROM jobs WHERE status = 'succeeded'"


def worker(world: World, setup: str, threads: int = THREADS) -> Running:
    """Start a worker of ours from another module; it does not write the tests' render log."""
    page = world.processes.folder / f"worker-{len(world.processes.started)}.url"
    given = world.processes.environment("worker", {**OURS, "ONCOMMIT_HEALTH_FILE": str(page)})
    del given["ONCOMMIT_RENDER_LOG"]
    argv = [sys.executable, "-m", "dramatiq", setup, "-p", "1", "-t", str(threads)]
    return world.processes.start("worker", argv, given)


@contextmanager
def _ours(ground: Ground) -> Generator[Turn]:
    with ground.world() as world:
        world.team()
        world.relay()

        def fill(count: int) -> None:
            for at in range(0, count, BATCH):
                world.accept(count=min(BATCH, count - at))
            until(lambda: world.in_redis() >= world.number(UNFINISHED), 60)

        yield Worker(
            fill, partial(worker, world, "benchmarks.bench.inline:setup"), partial(world.number, UNFINISHED)
        ).turn(ground)


def _rival(
    world: World, name: str, argv: list[str], *, fill: str, left: str, env: Mapping[str, str]
) -> Worker:
    given = {"RIVAL_LOG": str(world.processes.folder / f"{name}.rival.log"), **env}
    return Worker(
        lambda count: world.admin.execute(fill, [count]) and None,  # type: ignore[arg-type,func-returns-value]
        lambda: world.processes.start(name, [sys.executable, "-m", *argv], given),
        partial(world.number, left),
    )


@contextmanager
def _dramatiq_postgres(ground: Ground) -> Generator[Turn]:
    from dramatiq_postgres import schema  # noqa: PLC0415 -- only `make bench` installs it

    with ground.world() as world:
        with world.admin.cursor() as cursor:
            schema.init(cursor)
        yield _rival(
            world,
            "dramatiq-postgres",
            ["dramatiq", "benchmarks.bench.rivals.dramatiq_postgres_actors", "-p", "1", "-t", str(THREADS)],
            fill=FILL_DRAMATIQ,
            left="SELECT count(*) FROM dramatiq.queue",
            env={"RIVAL_DATABASE_URL": world.database.url()},
        ).turn(ground)


@contextmanager
def _procrastinate(ground: Ground) -> Generator[Turn]:
    from procrastinate import App, SyncPsycopgConnector  # noqa: PLC0415 -- only `make bench` installs it

    with ground.world() as world:
        with App(connector=SyncPsycopgConnector(conninfo=world.database.dsn())).open() as app:
            app.schema_manager.apply_schema()
        argv = [
            "procrastinate", "--app=benchmarks.bench.rivals.procrastinate_app.app", "worker",
            "--concurrency", str(THREADS),
        ]  # fmt: skip
        yield _rival(
            world,
            "procrastinate",
            argv,
            fill=FILL_PROCRASTINATE,
            left="SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')",
            env={"RIVAL_DATABASE_URL": world.database.url()},
        ).turn(ground)


@contextmanager
def _faststream(ground: Ground) -> Generator[Turn]:
    with ground.world() as world:
        url = world.database.url().replace("postgresql://", "postgresql+asyncpg://")
        contestant = _rival(
            world,
            "faststream-outbox",
            ["faststream", "run", "benchmarks.bench.rivals.faststream_app:app"],
            fill=FILL_FASTSTREAM,
            left="SELECT count(*) FROM faststream_outbox",
            env={"RIVAL_DATABASE_URL": url},
        )
        first = contestant.start()  # it makes its table
        until(lambda: world.number("SELECT to_regclass('faststream_outbox') IS NOT NULL"), 60)
        first.stop()
        yield contestant.turn(ground)


@contextmanager
def _pgbench(size: int, ground: Ground) -> Generator[Turn]:
    with ground.world() as world:
        world.team()
        # As many as the fastest machine may want within a turn, each client in a range of its own.
        each = ground.scaled(6_000 if size == 1 else 20_000, 2_000)

        def turn() -> Mapping[str, float]:
            empty(world)
            total = THREADS * each
            for query in FILL_PGBENCH:
                world.admin.execute(query, {"digest": DIGEST, "last": total - 1} if "%" in query else None)  # type: ignore[arg-type]
            rate = pgbench(
                ground, world, SCRIPT.format(size=size), "-D", "i=-1", "-D", f"each={each}",
                role="worker", clients=THREADS, seconds=3,
            )  # fmt: skip
            if world.number(FINISHED) >= 0.9 * total:  # a claim of nothing is fast
                raise RuntimeError("the jobs may have been used up before the seconds were over")
            return {"rate": rate * size}

        yield turn


def _entrances(ground: Ground) -> Mapping[str, Entrance]:
    found: dict[str, Callable[..., object]] = {
        "oncommit": _ours,
        "procrastinate": _procrastinate,
        "dramatiq-postgres": _dramatiq_postgres,
        "faststream-outbox": _faststream,
        "pgbench": partial(_pgbench, 1),
        "pgbench, arrays of 16": partial(_pgbench, 16),
    }
    return {name: partial(entrance, ground) for name, entrance in found.items()}  # type: ignore[misc]


MEASURES = [
    Measure(
        "whole-job",
        f"Whole jobs, claim to finish, no-op render, backlog of 20,000, 1 process x {THREADS}",
        [Figure("rate", "jobs/s")],
        [
            Floor("rate", "oncommit", "procrastinate", 5),
            Floor("rate", "oncommit", "dramatiq-postgres", 1.5),
            Floor("rate", "oncommit", "faststream-outbox", 1),
            Floor("rate", "oncommit", "pgbench", None),
            Floor("rate", "oncommit", "pgbench, arrays of 16", None),
        ],
        _entrances,
    )
]
