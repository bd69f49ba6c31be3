"""Time-outs, deadlocks and serialization failures: 503 in bounded time, nothing half done, usable after."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import LiteralString

import httpx
import pytest
from psycopg import sql

from support.postgres import Database, with_options
from support.processes import Processes
from support.team import Client, rows, token_for
from support.waiting import eventually

#: Tries of a conflict (portal.database); the last one's is told.
TRIES = 3
BOUNDED_SECONDS = 8.0
NOTHING = {"jobs": 0, "events": 0, "intents": 0, "requests": 0, "batches": 0}
WAITS_FOR = """
SELECT 1 FROM pg_locks l JOIN pg_stat_activity a USING (pid)
 WHERE NOT l.granted AND l.relation = %s::regclass AND a.usename = 'oncommit_portal'
"""
SESSIONS = """
SELECT pid, backend_start FROM pg_stat_activity
 WHERE usename = 'oncommit_portal' AND datname = current_database() ORDER BY pid
"""
#: READ COMMITTED is pinned for each acceptance (test_database_trouble shows it), and there
#: PostgreSQL never fails to serialize: so a trigger raises what a server under another level would, so often.
FAILS = """
CREATE SEQUENCE tried;
GRANT USAGE ON SEQUENCE tried TO oncommit_portal;
CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  IF nextval('public.tried') <= TG_ARGV[0]::int THEN
    RAISE EXCEPTION 'made up' USING ERRCODE = TG_ARGV[1];
  END IF;
  RETURN NULL;
END $$;
"""
WHEN: Mapping[str, LiteralString] = {
    "in the statement": "NOT DEFERRABLE",
    "at the commit": "DEFERRABLE INITIALLY DEFERRED",
}


@pytest.fixture
def client(database: Database, processes: Processes) -> Iterator[Client]:
    """A team's client of a portal whose statements may take 2 s, and whose deadlocks are seen at once."""
    name = database.name.encode()
    database.admin.execute(
        b"ALTER ROLE oncommit_portal IN DATABASE " + name + b" SET deadlock_timeout = '200ms'"
    )
    url = with_options(database.url("portal"), statement_timeout="2s")
    portal = processes.portal(ONCOMMIT_DATABASE_URL=url)
    found = Client(database, portal.url, "blue", token_for(database, "blue")[0])
    yield found
    found.http.close()


def _refused(ask: Callable[[], httpx.Response]) -> None:
    """Check that asking is a 503 that says when to come back, in bounded time."""
    started = time.monotonic()
    answer = ask()
    assert time.monotonic() - started < BOUNDED_SECONDS
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.json()["type"] == "/problems/database-unavailable"


def _deadlocks(database: Database, first: str, mode: str, then: str, times: int) -> threading.Thread:
    """Hold `first` in `mode`, and lock `then` each time that the portal, which has it, waits for `first`.

    Only the portal's session looks for deadlocks, so it is the one that PostgreSQL ends.
    """
    holding = threading.Event()

    def hold() -> None:
        with database.server.connect(database.name) as conn, conn.transaction():
            conn.execute("SET LOCAL deadlock_timeout = '1h'")
            conn.execute(f"LOCK TABLE {first} IN {mode} MODE".encode())
            holding.set()
            for _ in range(times):
                eventually(lambda: conn.execute(WAITS_FOR, [first]).fetchone())
                with conn.transaction(force_rollback=True):
                    conn.execute(f"LOCK TABLE {then} IN ACCESS EXCLUSIVE MODE".encode())

    thread = threading.Thread(target=hold)
    thread.start()
    assert holding.wait(10)
    return thread


def _seen(database: Database) -> int:
    """Return how many deadlocks the server has told of in its log."""
    return database.server.log_text().count("ERROR:  deadlock detected")


def test_a_statement_that_takes_too_long_is_a_503_and_costs_no_session(
    client: Client, database: Database
) -> None:
    job = {"document": client.put(), "kind": "page"}
    read = client.job()["links"]["self"]
    before = rows(client)
    sessions = database.admin.execute(SESSIONS).fetchall()
    with database.server.connect(database.name) as holder:
        holder.execute("BEGIN")
        holder.execute("LOCK TABLE outbox IN SHARE MODE")  # the acceptance has written its jobs by then
        _refused(lambda: client.post(job, key="one"))
        _refused(lambda: client.post({"jobs": [job, job]}, key="many", path="/v1/batches"))
        holder.execute("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE")
        _refused(lambda: client.http.get(read))
    assert rows(client) == before
    assert client.http.get(read).status_code == 200
    assert client.post(job, key="one").status_code == 202
    assert client.post({"jobs": [job, job]}, key="many", path="/v1/batches").status_code == 202
    assert rows(client)["jobs"] == before["jobs"] + 3
    assert database.admin.execute(SESSIONS).fetchall() == sessions


def test_a_deadlock_is_tried_again_and_then_is_a_503(client: Client, database: Database) -> None:
    body = {"document": client.put(), "kind": "page"}
    seen = _seen(database)
    once = _deadlocks(database, "requests", "EXCLUSIVE", "jobs", 1)
    assert client.post(body, key="once").status_code == 202
    once.join(20)
    assert _seen(database) == seen + 1
    before = rows(client)
    sessions = database.admin.execute(SESSIONS).fetchall()
    always = _deadlocks(database, "requests", "EXCLUSIVE", "jobs", TRIES)
    _refused(lambda: client.post(body, key="thrice"))
    always.join(20)
    assert _seen(database) == seen + 1 + TRIES
    assert rows(client) == before
    assert client.post(body, key="thrice").status_code == 202
    assert rows(client)["jobs"] == before["jobs"] + 1
    assert database.admin.execute(SESSIONS).fetchall() == sessions


def test_a_deadlock_of_a_read_is_tried_again_and_then_is_a_503(client: Client, database: Database) -> None:
    batch = client.post({"jobs": [{"document": client.put(), "kind": "page"}]}, path="/v1/batches").json()
    seen = _seen(database)
    for times, told in ((1, 200), (TRIES, 503)):
        thread = _deadlocks(database, "jobs", "ACCESS EXCLUSIVE", "batches", times)
        answer = client.http.get(batch["links"]["self"])
        thread.join(20)
        seen += times
        assert (answer.status_code, _seen(database)) == (told, seen)
    assert answer.headers["retry-after"] == "1"
    assert client.http.get(batch["links"]["self"]).status_code == 200


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("code", ["40001", "40P01"])
def test_what_cannot_be_serialized_is_tried_again_and_then_is_a_503(
    client: Client, database: Database, code: str, when: str
) -> None:
    body = {"document": client.put(), "kind": "page"}
    database.admin.execute(FAILS)
    trigger = sql.SQL(
        "CREATE CONSTRAINT TRIGGER fails AFTER INSERT ON requests {} FOR EACH ROW"
        " EXECUTE FUNCTION fail({}, {})"
    ).format(sql.SQL(WHEN[when]), sql.Literal(str(TRIES)), sql.Literal(code))
    database.admin.execute(trigger)
    _refused(lambda: client.post(body, key="k"))
    assert rows(client) == NOTHING
    assert database.admin.execute("SELECT last_value FROM tried").fetchone() == (TRIES,)
    database.admin.execute("SELECT setval('tried', 1)")  # two more fail, the third try takes
    answers = [client.post(body, key="k") for _ in range(2)]
    assert [a.status_code for a in answers] == [202, 202]
    assert answers[1].headers["idempotent-replayed"] == "true"
    assert rows(client) == {"jobs": 1, "events": 1, "intents": 1, "requests": 1, "batches": 0}
