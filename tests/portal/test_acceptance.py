"""A 202 means committed; no commit, no 202, and the key stays free."""

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from portal import resources
from support.raw_http import exchange, request_head
from support.team import Client, House, rows, token_for

NOTHING = {"jobs": 0, "events": 0, "intents": 0, "requests": 0, "batches": 0}
ONE = {"jobs": 1, "events": 1, "intents": 1, "requests": 1, "batches": 0}

#: The portal's sessions that are at work, and the advisory locks that they hold or wait for.
HELD = """
SELECT count(DISTINCT a.pid) FILTER (WHERE a.state <> 'idle'), count(l.pid)
  FROM pg_stat_activity a LEFT JOIN pg_locks l ON l.pid = a.pid AND l.locktype = 'advisory'
 WHERE a.usename = 'oncommit_portal' AND a.datname = current_database()
"""
REFUSE = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'canary-sql-text'; END $$
"""


def test_accepting_a_job_writes_one_of_each_row_and_says_where_it_is(client: Client) -> None:
    digest = client.put()
    answer = client.post({"document": digest, "kind": "thumbnail", "priority": 0, "title": "Ü\\u0000"})
    assert answer.status_code == 202
    job = answer.json()
    assert answer.headers["location"] == f"/v1/jobs/{job['id']}"
    assert int(answer.headers["retry-after"]) >= 1
    assert "idempotent-replayed" not in answer.headers
    assert job["team"] == client.team
    assert (job["status"], job["priority"], job["title"]) == ("queued", 0, "Ü\\u0000")
    assert rows(client) == ONE
    shown = client.http.get(answer.headers["location"]).json()
    assert shown == job
    resources.Job.model_validate(shown)
    events = client.http.get(job["links"]["events"]).json()
    resources.JobEvents.model_validate(events)
    assert [e["type"] for e in events["events"]] == ["accepted"]


def test_the_same_key_again_gives_the_same_job_and_writes_nothing(client: Client) -> None:
    body = {"document": client.put(), "kind": "page"}
    first = client.post(body, key="k")
    again = client.post(body | {"priority": 5, "title": None}, key="k")
    assert first.status_code == again.status_code == 202
    assert again.json() == first.json()
    assert again.headers["idempotent-replayed"] == "true"
    assert again.headers["location"] == first.headers["location"]
    assert rows(client) == ONE


def test_equal_meaning_in_other_bytes_is_the_same_request(client: Client) -> None:
    digest = client.put()
    variants = [
        f'{{"document":"{digest}","kind":"page","title":"A"}}',
        f'  {{ "title" : "\\u0041", "kind":"page", "priority":5, "document":"{digest}" }}\n',
    ]
    headers = {"Idempotency-Key": "k", "Content-Type": "application/json"}
    answers = [client.http.post("/v1/jobs", content=text, headers=headers) for text in variants]
    assert [a.status_code for a in answers] == [202, 202]
    assert answers[0].json()["id"] == answers[1].json()["id"]
    written = f'{{"document":"{digest}","kind":"page","title":"A","priority":5.0}}'
    assert client.http.post("/v1/jobs", content=written, headers=headers).status_code == 422
    assert rows(client) == ONE


@pytest.mark.parametrize(
    ("table", "when"),
    [
        ("outbox", "AFTER INSERT"),
        ("job_events", "AFTER INSERT"),
        ("requests", "AFTER INSERT"),
        ("requests", "COMMIT"),
    ],
)
def test_a_commit_that_fails_is_503_without_any_row_and_leaves_the_key_free(
    client: Client, table: str, when: str
) -> None:
    body = {"document": client.put(), "kind": "page"}
    client.database.admin.execute(REFUSE)
    kind = "CREATE CONSTRAINT TRIGGER t AFTER INSERT" if when == "COMMIT" else f"CREATE TRIGGER t {when}"
    deferred = "DEFERRABLE INITIALLY DEFERRED" if when == "COMMIT" else ""
    client.database.admin.execute(
        f"{kind} ON {table} {deferred} FOR EACH ROW EXECUTE FUNCTION refuse()".encode()
    )
    try:
        answer = client.post(body, key="k")
        assert answer.status_code == 503
        assert answer.headers["content-type"] == "application/problem+json"
        assert int(answer.headers["retry-after"]) >= 1
        assert "canary-sql-text" not in answer.text
        assert rows(client) == NOTHING
    finally:
        client.database.admin.execute("DROP FUNCTION refuse() CASCADE")
    assert client.post(body, key="k").status_code == 202
    assert rows(client) == ONE


def test_the_same_key_of_two_teams_is_two_jobs(client: Client, other: Client) -> None:
    mine = client.post({"document": client.put(b"a"), "kind": "page"}, key="k")
    theirs = other.post({"document": other.put(b"b"), "kind": "page"}, key="k")
    assert (mine.status_code, theirs.status_code) == (202, 202)
    assert mine.json()["id"] != theirs.json()["id"]
    assert theirs.json()["team"] == other.team


def test_pairs_that_collide_when_joined_are_two_requests(house: House) -> None:
    for team, key in (("a", "b|c"), ("a-b", "c"), ("a", "b-c")):
        client = Client(house.database, house.portal.url, team, token_for(house.database, team)[0])
        answer = client.post({"document": client.put(), "kind": "page"}, key=key)
        assert (answer.status_code, answer.json()["team"]) == (202, team)
        assert "idempotent-replayed" not in answer.headers
        assert rows(client)["jobs"] == (2 if key == "b-c" and team == "a" else 1)


def test_a_document_of_another_team_is_unknown(client: Client, other: Client) -> None:
    answer = client.post({"document": other.put(b"theirs"), "kind": "page"}, key="k")
    assert answer.status_code == 422
    assert answer.json()["type"] == "/problems/unknown-document"
    assert answer.json()["errors"][0]["pointer"] == "/document"
    assert rows(client) == NOTHING
    assert client.post({"document": client.put(b"mine"), "kind": "page"}, key="k").status_code == 202


def test_another_request_under_a_decided_key_is_422(client: Client) -> None:
    digest = client.put()
    client.post({"document": digest, "kind": "page"}, key="k")
    for path, body in (
        ("/v1/jobs", {"document": digest, "kind": "thumbnail"}),
        ("/v1/jobs", {"document": digest, "kind": "page", "max_attempts": 5}),
        ("/v1/batches", {"jobs": [{"document": digest, "kind": "page"}]}),
    ):
        answer = client.post(body, key="k", path=path)
        assert (answer.status_code, answer.json()["type"]) == (422, "/problems/key-reused")
    assert rows(client) == ONE


def test_a_key_being_decided_is_409_after_a_wait_without_session_or_lock_and_422_afterwards(
    client: Client,
) -> None:
    body = {"document": client.put(), "kind": "page"}
    with client.database.server.connect(client.database.name) as holder:
        holder.execute("BEGIN")
        holder.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"{client.team}|k"])
        for wanted in (body, body | {"kind": "thumbnail"}):
            looks: list[bool] = []
            with ThreadPoolExecutor(1) as other:
                asked = other.submit(client.post, wanted, key="k")
                while not asked.done():
                    looks.append(client.database.admin.execute(HELD).fetchone() == (0, 0))
                    time.sleep(0.01)
            answer = asked.result()
            # It looks at the key some 15 times, for a few milliseconds each; it holds nothing between them.
            assert sum(looks[1:-1]) > len(looks) / 2, looks
            assert (answer.status_code, answer.json()["type"]) == (409, "/problems/key-busy")
            assert 1.0 < answer.elapsed.total_seconds() < 6.0, "2 s, and room for a machine that is busy"
            assert int(answer.headers["retry-after"]) >= 1
    assert client.post(body, key="k").status_code == 202
    assert client.post(body | {"kind": "thumbnail"}, key="k").status_code == 422


def test_a_team_over_its_backlog_gets_429_but_may_repeat_what_was_accepted(
    client: Client, other: Client
) -> None:
    body = {"document": client.put(), "kind": "page"}
    assert client.post(body, key="k").status_code == 202
    client.database.admin.execute("UPDATE teams SET max_backlog = 1 WHERE id = %s", [client.team])
    full = client.post({"jobs": [body] * 2}, path="/v1/batches", key="next")
    assert (full.status_code, full.json()["type"]) == (429, "/problems/backlog-full")
    assert int(full.headers["retry-after"]) >= 1
    assert full.headers["ratelimit"].startswith('"team";r=')
    assert full.headers["ratelimit-policy"].startswith('"team";q=')
    assert client.post(body, key="k").headers["idempotent-replayed"] == "true"
    assert other.post({"document": other.put(), "kind": "page"}).status_code == 202


KEYS = [
    (letters * length, verdict)
    for length, verdict in (
        (1, 202),
        (64, 202),
        (255, 202),
        (256, 400),
        (2_048, 400),
        (2_705, 400),
        (8_000, 400),
    )
    for letters in ("a", "~")
]


def test_keys_follow_one_rule_whatever_their_letters(client: Client) -> None:
    digest = client.put()
    found = [
        (len(key), client.post({"document": digest, "kind": "page"}, key=key).status_code) for key, _ in KEYS
    ]
    assert found == [(len(key), verdict) for key, verdict in KEYS]
    long = "x" * 254
    ids = {client.post({"document": digest, "kind": "page"}, key=long + last).json()["id"] for last in "ab"}
    assert len(ids) == 2
    assert client.post({"document": digest, "kind": "page"}, key="k" * 60_000).status_code == 431
    assert client.http.get("/livez").status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"Idempotency-Key", b"")],
        [(b"Idempotency-Key", b"   ")],
        [(b"Idempotency-Key", b"a"), (b"Idempotency-Key", b"a")],
        [(b"Idempotency-Key", b"a"), (b"idempotency-key", b"b")],
        [(b"Idempotency-Key", b"a b")],
        [(b"Idempotency-Key", "ключ".encode())],
        [(b"Idempotency-Key", b"caf\xe9")],
    ],
)
def test_a_missing_empty_repeated_or_invisible_key_is_400(
    client: Client, headers: list[tuple[bytes, bytes]]
) -> None:
    body = json.dumps({"document": client.put(), "kind": "page"}).encode()
    status, _, told = exchange(
        client.url,
        request_head(
            "POST", "/v1/jobs", client.token, [(b"Content-Type", b"application/json"), *headers], body
        ),
    )
    assert (status, json.loads(told)["type"]) == (400, "/problems/idempotency-key")
    assert rows(client) == NOTHING


def test_simulate_is_taken_only_where_it_is_switched_on(client: Client, house: House) -> None:
    body = {"document": client.put(), "kind": "page", "simulate": {"sleep_ms": 1, "crash": "worker"}}
    assert client.post(body).status_code == 202
    stored = client.database.admin.execute(
        "SELECT simulate FROM jobs WHERE team = %s", [client.team]
    ).fetchone()
    assert stored == ({"sleep_ms": 1, "crash": "worker"},)
    plain = Client(
        client.database, house.processes.portal(ONCOMMIT_SIMULATION="0").url, client.team, client.token
    )
    answer = plain.post(body)
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/simulation-off")


def test_the_key_is_a_field_of_the_log_and_never_a_label(client: Client, house: House) -> None:
    portal = house.portal
    key = "canary-key\x7e"
    job = client.post({"document": client.put(), "kind": "page", "title": "canary-title"}, key=key).json()
    portal.wait_log(key)
    line = next(line for line in portal.log_lines() if line.get("key") == key)
    assert (line["team"], line["job"], line["status"]) == (client.team, job["id"], 202)
    assert len(line["trace"]) == 32
    metrics = client.http.get("/metrics").text
    assert 'jobs_accepted_total{kind="page"}' in metrics
    assert key not in metrics
    assert client.token not in portal.log_text()
    assert "canary-title" not in portal.log_text()


def test_the_trace_of_the_caller_reaches_the_message(client: Client) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    body = {"document": client.put(), "kind": "page"}
    client.post(body, traceparent=f"00-{trace}-00f067aa0ba902b7-01")
    found = client.database.admin.execute(
        "SELECT body::json -> 'options' ->> 'traceparent' FROM outbox WHERE lane = %s",
        [client.team],
    ).fetchone()
    assert found is not None
    assert found[0].startswith(f"00-{trace}-")
    assert "00f067aa0ba902b7" not in found[0]
