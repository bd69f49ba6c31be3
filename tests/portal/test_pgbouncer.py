"""Portal and workers through PgBouncer in transaction mode; the relay's stream goes to the server itself."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID

import pytest

from db.pool import connect
from support.bench import Bench
from support.kinds import kinds
from support.pgbouncer import MakeBouncer, bouncer, wanted
from support.postgres import Database, Role
from support.processes import Processes
from support.team import Client, token_for
from support.waiting import eventually

__all__ = ["bouncer"]

JOBS, CLIENTS, POOL = 1_000, 8, 3
#: Anything that a session would have to keep from one transaction to the next shows by one of these.
TRACES = ("prepared statement", "InvalidSqlStatementName", "DuplicatePreparedStatement")
SETTINGS = """
SELECT name, setting::int || 'ms' FROM pg_settings
 WHERE name IN ('statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout')
"""
LEFT = """
SELECT (SELECT count(*) FROM jobs WHERE status NOT IN ('succeeded', 'dead', 'cancelled')),
       (SELECT count(*) FROM outbox)
"""
STATUSES = "SELECT status, count(*) FROM jobs GROUP BY status"
TAKEN_AWAY = "SELECT job FROM job_events WHERE type IN ('released', 'rescued')"
ONE_SERVER = pytest.mark.parametrize("session_server", kinds()[0][-1:], indirect=True)
pytestmark = [ONE_SERVER, *([] if wanted() else [pytest.mark.skip(reason="told in the session's header")])]


def submit(client: Client, done: Counter[str], half: threading.Event) -> set[str]:
    """Ask for all jobs by several clients, each until it has its 202; return the ids."""
    digest = client.put()

    def one(n: int) -> str:
        def accepted() -> str:
            answer = client.post({"document": digest, "kind": "thumbnail"}, key=f"k{n}")
            done[str(answer.status_code)] += 1
            assert answer.status_code in {202, 409, 503}, answer.text
            return str(answer.json()["id"]) if answer.status_code == 202 else ""

        found = eventually(accepted, timeout=60, every=0.1)
        if done["202"] >= JOBS // 2:
            half.set()
        return found

    with ThreadPoolExecutor(CLIENTS) as clients:
        return set(clients.map(one, range(JOBS)))


@pytest.mark.timeout(300)
def test_a_thousand_jobs_settle_through_a_pooler_that_is_killed_midway(
    database: Database, processes: Processes, bouncer: MakeBouncer
) -> None:
    pooler = bouncer(pool=POOL)
    bench = Bench(database.admin, Path(processes.blobs))
    relay = processes.relay()
    portal = processes.portal(ONCOMMIT_DATABASE_URL=pooler.url("portal"))
    worker = processes.worker(ONCOMMIT_DATABASE_URL=pooler.url("worker"))
    client = Client(database, portal.url, "blue", token_for(database, "blue")[0])
    done: Counter[str] = Counter()
    half = threading.Event()
    with ThreadPoolExecutor(1) as beside:
        submitted = beside.submit(submit, client, done, half)
        assert half.wait(120)
        pooler.kill()
        pooler.start()
        ids = submitted.result(120)
    client.http.close()
    assert len(ids) == JOBS
    eventually(lambda: database.admin.execute(LEFT).fetchone() == (0, 0), timeout=150, describe="all settled")
    assert dict(database.admin.execute(STATUSES).fetchall()) == {"succeeded": JOBS}
    bench.jobs = [*map(UUID, ids)]
    bench.check()
    ends = [line for line in processes.renders() if line["phase"] == "end"]
    rendered = Counter(line["job"] for line in ends if line["outcome"] == "rendered")
    assert rendered.keys() == ids
    # A claim that was given back while the pooler was away is rendered again; the events say so.
    taken = Counter(str(job) for (job,) in database.admin.execute(TAKEN_AWAY).fetchall())
    assert {job: n - 1 for job, n in rendered.items() if n > 1 + taken[job]} == {}
    for process in (portal, worker, relay):
        assert process.running
        assert [mark for mark in TRACES if mark in process.log_text()] == []


@pytest.mark.parametrize("role", ["portal", "worker"])
def test_what_a_pooler_leaves_out_the_role_has(database: Database, bouncer: MakeBouncer, role: Role) -> None:
    """No session option arrives, and trouble still ends in bounded time."""
    with connect(bouncer().url(role), "test") as through, connect(database.url(role), "test") as straight:
        found = dict(through.execute(SETTINGS).fetchall())
        assert found == dict(straight.execute(SETTINGS).fetchall())
    assert set(found.values()) == {"15000ms", "5000ms", "30000ms"}


def test_a_pooler_that_takes_no_options_is_named_in_the_log(
    bouncer: MakeBouncer, processes: Processes
) -> None:
    pooler = bouncer(without="ignore_startup_parameters = options")
    portal = processes.portal(ready=False, ONCOMMIT_DATABASE_URL=pooler.url("portal"))
    portal.wait_log("unsupported startup parameter: options")
    assert portal.get("/readyz") == 503
