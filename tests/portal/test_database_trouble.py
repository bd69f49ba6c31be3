"""PostgreSQL in trouble: 503 in bounded time or an honest 202, never 500 or 401, and back by itself."""

import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from portal.database import POOL_SIZE, WORK_SECONDS
from portal.identity import BELIEVED_SECONDS
from support.postgres import Database
from support.processes import Processes, Running
from support.proxy import Proxy
from support.raw_http import exchange, request_head
from support.team import Client, rows, token_for
from support.waiting import eventually

ALLOWED = {202, 503}
WAITING = """
SELECT 1 FROM pg_stat_activity
 WHERE usename = 'oncommit_portal' AND wait_event_type = 'Lock' AND datname = current_database()
"""


@pytest.fixture
def portal(processes: Processes) -> Running:
    """A portal of this test's own, whose server may be hurt."""
    return processes.portal()


@pytest.fixture
def client(database: Database, portal: Running) -> Iterator[Client]:
    """A team's client of that portal."""
    found = Client(database, portal.url, "blue", token_for(database, "blue")[0])
    yield found
    found.http.close()


def test_terminated_sessions_cost_at_most_an_honest_503(client: Client, database: Database) -> None:
    body = {"document": client.put(), "kind": "page"}
    statuses: list[int] = []
    for n in range(60):
        if n % 20 == 10:
            database.admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'oncommit_portal'"
            )
        statuses.append(client.post(body, key=f"k{n}").status_code)
    assert set(statuses) <= ALLOWED
    assert statuses.count(503) <= 3
    for n in range(60):
        assert client.post(body, key=f"k{n}").status_code == 202
    assert rows(client)["jobs"] == 60


def test_a_read_only_server_refuses_jobs_and_shows_them(client: Client, database: Database) -> None:
    job = client.job()
    body = {"document": client.put(), "kind": "page"}
    name = database.name.encode()
    database.admin.execute(b"ALTER DATABASE " + name + b" SET default_transaction_read_only = on")
    database.admin.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'oncommit_portal'"
    )
    answer = client.post(body, key="k")
    assert answer.status_code == 503
    eventually(lambda: client.http.get(job["links"]["self"]).status_code == 200)
    assert client.http.get("/readyz").json()["read_only"] is True
    database.admin.execute("SET default_transaction_read_only = off")
    database.admin.execute(b"ALTER DATABASE " + name + b" RESET default_transaction_read_only")
    database.admin.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'oncommit_portal'"
    )
    eventually(lambda: client.post(body, key="k").status_code == 202, timeout=10)


def test_a_locked_table_is_503_in_bounded_time_and_probes_still_answer(
    client: Client, database: Database
) -> None:
    body = {"document": client.put(), "kind": "page"}
    with database.server.connect(database.name) as holder:
        holder.execute("BEGIN")
        holder.execute("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE")
        started = time.monotonic()
        assert client.post(body, key="k").status_code == 503
        assert time.monotonic() - started < 8
    assert client.post(body, key="k").status_code == 202
    assert rows(client)["jobs"] == 1


def test_a_pool_that_is_all_taken_is_503_for_everybody_in_bounded_time(
    client: Client, database: Database
) -> None:
    asked = client.job()["links"]["self"]
    many = httpx.Limits(max_connections=None)
    headers = {"Authorization": f"Bearer {client.token}"}
    with (
        httpx.Client(base_url=client.url, headers=headers, timeout=60, trust_env=False, limits=many) as http,
        database.server.connect(database.name) as holder,
        ThreadPoolExecutor(40) as pool,
    ):
        holder.execute("BEGIN")
        holder.execute("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE")
        asking = [pool.submit(http.get, asked) for _ in range(40)]
        eventually(lambda: len(database.admin.execute(WAITING).fetchall()) == POOL_SIZE)
        assert exchange(client.url, request_head("GET", "/livez", None, []))[0] == 200
        assert not all(each.done() for each in asking), "it answered meanwhile"
        answers = [each.result() for each in asking]
        holder.execute("ROLLBACK")
    assert {(a.status_code, a.headers["retry-after"]) for a in answers} == {(503, "1")}
    assert max(a.elapsed.total_seconds() for a in answers) < WORK_SECONDS + 4
    # Those who found no free connection did not wait for those who had one.
    assert sum(a.elapsed.total_seconds() < WORK_SECONDS for a in answers) >= 40 - POOL_SIZE
    eventually(lambda: client.http.get(asked).status_code == 200, timeout=10)


def test_a_server_with_too_many_connections_is_503_and_found_again(
    client: Client, database: Database
) -> None:
    asked = client.job()["links"]["self"]
    try:
        database.admin.execute("ALTER ROLE oncommit_portal CONNECTION LIMIT 0")
        database.admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'oncommit_portal'"
        )
        time.sleep(BELIEVED_SECONDS)  # from here on the token, too, has to be looked up
        for answer in (client.http.get(asked), client.post({"document": "x"}), client.http.get("/v1/jobs")):
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1"), answer.text
            assert answer.json()["type"] == "/problems/database-unavailable"
        assert client.http.get("/livez").status_code == 200
    finally:
        database.admin.execute("ALTER ROLE oncommit_portal CONNECTION LIMIT -1")
    eventually(lambda: client.http.get(asked).status_code == 200, timeout=10)


def test_a_restarted_server_is_found_again_within_ten_seconds(
    client: Client, database: Database, portal: Running
) -> None:
    """Down for longer than any reconnection is tried without being asked."""
    body = {"document": client.put(), "kind": "page"}
    database.admin.close()
    database.server.stop()
    down = time.monotonic()
    while time.monotonic() - down < 12:
        started = time.monotonic()
        assert client.post(body, key="k").status_code == 503
        assert time.monotonic() - started < 8
    assert client.http.get("/livez").status_code == 200
    assert client.http.get("/readyz").status_code == 503
    database.server.start()
    eventually(lambda: client.post(body, key="k").status_code == 202, timeout=10)
    assert portal.running


def test_a_frozen_server_is_503_and_every_probe_answers_within_a_second(
    client: Client, database: Database
) -> None:
    body = {"document": client.put(), "kind": "page"}
    database.server.freeze()
    try:
        answers: list[httpx.Response] = []
        thread = threading.Thread(target=lambda: answers.append(client.post(body, key="k")))
        thread.start()
        for path, expected in (("/livez", 200), ("/readyz", 503), ("/metrics", 200)):
            started = time.monotonic()
            assert exchange(client.url, request_head("GET", path, None, []))[0] == expected
            assert time.monotonic() - started < 1.0
        thread.join(30)
        assert [a.status_code for a in answers] == [503]
        assert answers[0].elapsed.total_seconds() < 20
    finally:
        database.server.thaw()
    eventually(lambda: client.post(body, key="k").status_code == 202, timeout=10)


def test_a_portal_may_start_before_its_server(database: Database, processes: Processes) -> None:
    token, _ = token_for(database, "blue")
    database.admin.close()
    database.server.stop()
    portal = processes.portal(ready=False)
    eventually(lambda: portal.get("/livez") == 200)
    client = Client(database, portal.url, "blue", token)
    answer = client.http.get("/v1/jobs")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    database.server.start()
    eventually(lambda: client.http.get("/v1/jobs").status_code == 200, timeout=10)


def test_a_lost_commit_reply_is_503_and_the_same_key_finds_out(
    database: Database, processes: Processes
) -> None:
    """The commit takes on the server; its answer never arrives."""
    with Proxy(database.server.port) as proxy:
        portal = processes.portal(
            ONCOMMIT_DATABASE_URL=database.url("portal", proxy.port),
        )
        client = Client(database, portal.url, "blue", token_for(database, "blue")[0])
        body = {"document": client.put(), "kind": "page"}
        with database.server.connect(database.name) as holder:
            holder.execute("BEGIN")
            holder.execute("LOCK TABLE outbox IN SHARE MODE")  # acceptance waits before its last row
            answers: list[httpx.Response] = []
            thread = threading.Thread(target=lambda: answers.append(client.post(body, key="k")))
            thread.start()
            eventually(lambda: database.admin.execute(WAITING).fetchone())
            proxy.cut()
        thread.join(30)
        assert [a.status_code for a in answers] == [503]
        proxy.restore()
        eventually(lambda: client.post(body, key="k").status_code == 202, timeout=10)
        assert rows(client)["jobs"] == 1


def test_a_default_of_serializable_changes_nothing(client: Client, database: Database) -> None:
    name = database.name.encode()
    database.admin.execute(
        b"ALTER ROLE oncommit_portal IN DATABASE "
        + name
        + b" SET default_transaction_isolation = serializable"
    )
    database.admin.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'oncommit_portal'"
    )
    body = {"document": client.put(), "kind": "page"}
    assert [client.post(body, key="k").status_code for _ in range(3)] == [202] * 3


def test_a_client_that_hangs_up_leaves_no_transaction_open(client: Client, database: Database) -> None:
    body = {"document": client.put(), "kind": "page"}
    with database.server.connect(database.name) as holder:
        holder.execute("BEGIN")
        holder.execute("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE")
        for n in range(5):
            with pytest.raises(httpx.ReadTimeout):
                client.http.post("/v1/jobs", json=body, headers={"Idempotency-Key": f"k{n}"}, timeout=0.3)
    eventually(
        lambda: (
            database.admin.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE usename = 'oncommit_portal' AND state <> 'idle'"
            ).fetchone()
            == (0,)
        )
    )
    assert [client.post(body, key=f"k{n}").status_code for n in range(5)] == [202] * 5
    assert rows(client)["jobs"] == 5


def test_sigterm_answers_what_was_taken_and_ends_with_zero(
    client: Client, database: Database, portal: Running
) -> None:
    body = {"document": client.put(), "kind": "page"}
    answers: list[httpx.Response] = []
    job = client.job()
    stream = client.http.build_request("GET", job["links"]["events"], headers={"Accept": "text/event-stream"})
    followed = client.http.send(stream, stream=True)
    with database.server.connect(database.name) as holder:
        holder.execute("BEGIN")
        holder.execute("LOCK TABLE outbox IN SHARE MODE")
        thread = threading.Thread(target=lambda: answers.append(client.post(body, key="k")))
        thread.start()
        eventually(lambda: database.admin.execute(WAITING).fetchone())
        portal.signal(signal.SIGTERM)
        portal.wait_log("Shutting down")
    thread.join(20)
    followed.close()
    assert [a.status_code for a in answers] == [202]
    assert portal.wait_ended() == 0
    assert rows(client)["jobs"] == 2
    with pytest.raises(httpx.ConnectError):
        client.http.get("/livez")
