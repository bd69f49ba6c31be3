"""Who may do what, and how soon a token that was taken away stops working."""

import datetime as dt
import json

import httpx
import pytest

from support.raw_http import exchange, request_head
from support.team import Client, House, token_for
from support.waiting import eventually

ROUTES = [
    ("GET", "/v1/jobs"),
    ("GET", "/v1/jobs/{id}"),
    ("GET", "/v1/jobs/{id}/events"),
    ("GET", "/v1/jobs/{id}/preview"),
    ("HEAD", "/v1/jobs/{id}/preview"),
    ("GET", "/v1/batches/{id}"),
    ("GET", "/v1/batches/{id}/events"),
    ("GET", "/v1/documents/sha256:" + "0" * 64),
    ("POST", "/v1/jobs"),
    ("POST", "/v1/batches"),
    ("POST", "/v1/jobs/{id}/cancel"),
    ("PUT", "/v1/documents"),
]
ID = "01a229c8-a318-7b07-ba0b-0313e4898a0f"


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"Authorization", b"")],
        [(b"Authorization", b"Bearer")],
        [(b"Authorization", b"Bearer wrong-wrong-wrong")],
        [(b"Authorization", b"Basic dXNlcjpwYXNz")],
        [(b"Authorization", b"Bearer \xff\xfe\xfd\xfc\xfb\xfa\xf9\xf8")],
        [(b"Authorization", b"Bearer a b")],
        [(b"Authorization", b"Bearer " + b"x" * 10_000)],
    ],
)
def test_without_a_good_token_every_route_is_401(client: Client, headers: list[tuple[bytes, bytes]]) -> None:
    for method, path in ROUTES:
        status, told, body = exchange(
            client.url,
            request_head(method, path.format(id=ID), None, headers, b"" if method != "GET" else None),
        )
        assert (method, path, status) == (method, path, 401)
        assert told["www-authenticate"].startswith("Bearer")
        assert method == "HEAD" or json.loads(body)["type"] == "/problems/unauthenticated"


def test_two_authorization_headers_are_none(client: Client) -> None:
    twice = [(b"Authorization", b"Bearer " + client.token.encode())] * 2
    assert exchange(client.url, request_head("GET", "/v1/jobs", None, twice))[0] == 401


def test_a_scope_allows_its_own_and_nothing_else(house: House) -> None:
    reader, submitter, operator = house.client("read"), house.client("submit"), house.client("operate")
    digest = submitter.put()
    job = submitter.post({"document": digest, "kind": "page"}).json()
    assert reader.http.get("/v1/jobs").status_code == 200
    for denied in (
        reader.http.put("/v1/documents", content=b"x"),
        reader.post({"document": digest, "kind": "page"}),
        reader.http.post(f"/v1/jobs/{job['id']}/cancel"),
        submitter.http.get("/v1/jobs"),
        submitter.http.get(job["links"]["self"]),
        operator.http.get("/v1/jobs"),
        operator.post({"document": digest, "kind": "page"}),
    ):
        assert (denied.status_code, denied.json()["type"]) == (403, "/problems/forbidden")
        assert "insufficient_scope" in denied.headers["www-authenticate"]


def test_an_unknown_and_a_foreign_id_are_told_alike(client: Client, other: Client) -> None:
    theirs = other.job(title="canary-title")
    batch = other.post({"jobs": [{"document": other.put(), "kind": "page"}]}, path="/v1/batches").json()
    for method, path, foreign in (
        ("GET", "/v1/jobs/{}", theirs["id"]),
        ("GET", "/v1/jobs/{}/events", theirs["id"]),
        ("GET", "/v1/jobs/{}/preview", theirs["id"]),
        ("POST", "/v1/jobs/{}/cancel", theirs["id"]),
        ("GET", "/v1/batches/{}", batch["id"]),
        ("GET", "/v1/batches/{}/events", batch["id"]),
        ("GET", "/v1/documents/{}", theirs["document"]),
    ):
        answers = [
            client.http.request(method, path.format(x)) for x in (foreign, ID, "nonsense", "%00", "\u0661")
        ]
        assert [a.status_code for a in answers] == [404] * 5
        bodies = [{k: v for k, v in a.json().items() if k != "trace"} for a in answers]
        assert all(body == bodies[0] for body in bodies)
        assert "canary" not in answers[0].text
    assert client.http.get("/v1/jobs", params={"batch": batch["id"]}).json()["jobs"] == []
    assert other.http.get(theirs["links"]["self"]).json()["status"] == "queued"


def test_a_revoked_token_stops_working_within_two_seconds(client: Client) -> None:
    assert client.http.get("/v1/jobs").status_code == 200
    client.database.admin.execute("UPDATE tokens SET revoked_at = now() WHERE team = %s", [client.team])
    eventually(lambda: client.http.get("/v1/jobs").status_code == 401, timeout=2.0)
    assert client.http.get("/v1/jobs").status_code == 401


def test_a_token_stops_working_when_it_expires(client: Client) -> None:
    soon = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=2)
    token, _ = token_for(client.database, client.team, "read", expires_at=soon.isoformat())

    def status() -> int:
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.get(f"{client.url}/v1/jobs", headers=headers, trust_env=False).status_code

    assert status() == 200
    eventually(lambda: status() == 401, timeout=4.0)


def test_a_team_that_asks_too_fast_gets_429_and_the_others_do_not(house: House) -> None:
    slow = house.processes.portal(ONCOMMIT_TEAM_REQUESTS_PER_SECOND="2")
    one, two = house.client(), house.client()
    fast = Client(house.database, slow.url, one.team, one.token)
    answers = [fast.http.get("/v1/jobs") for _ in range(8)]
    limited = [a for a in answers if a.status_code == 429]
    assert limited
    assert limited[0].json()["type"] == "/problems/rate-limited"
    assert limited[0].headers["ratelimit"].startswith('"team";r=0;t=')
    assert limited[0].headers["ratelimit-policy"] == '"team";q=4;w=2'
    assert int(limited[0].headers["retry-after"]) >= 1
    assert answers[0].headers["ratelimit-policy"] == '"team";q=4;w=2'
    assert answers[0].headers["ratelimit"].startswith('"team";r=3;')
    assert Client(house.database, slow.url, two.team, two.token).http.get("/v1/jobs").status_code == 200
