"""HEAD beside every GET: the same status and headers, no body, and a stream that ends."""

import time

from support.raw_http import exchange, request_head
from support.team import Client

#: Of the moment or of the connection, and the headers that say what is left of the team's rate.
PASSING = {"connection", "date", "ratelimit", "transfer-encoding"}
STREAM = b"text/event-stream"


def _asked(
    client: Client, method: str, path: str, accept: bytes = b"*/*"
) -> tuple[int, dict[str, str], bytes]:
    # Closed afterwards, so that a body would be read whatever its length is said to be.
    headers = [(b"Accept", accept), (b"Connection", b"close")]
    status, told, body = exchange(client.url, request_head(method, path, client.token, headers))
    return status, {name: value for name, value in told.items() if name not in PASSING}, body


def test_every_get_is_answered_for_head_with_the_same_headers_and_no_body(client: Client) -> None:
    job = client.job()
    batch = client.post({"jobs": [{"document": job["document"], "kind": "page"}]}, path="/v1/batches").json()
    names = {"digest": job["document"], "job_id": job["id"], "batch_id": batch["id"]}
    schema = client.http.get("/openapi.json").json()
    paths = [path for path, item in schema["paths"].items() if "get" in item]
    assert paths == [path for path, item in schema["paths"].items() if "head" in item]
    assert len(paths) > 10
    for path in paths:
        here = path.format_map(names)
        status, headers, body = _asked(client, "GET", here)
        told, same, nothing = _asked(client, "HEAD", here)
        if path in {"/metrics", "/readyz"}:  # they tell the moment, at whatever length
            headers.pop("content-length")
            same.pop("content-length")
        assert (path, told, same, nothing) == (path, status, headers, b"")
        assert body


def test_head_tells_problems_and_forbids_what_get_does(client: Client) -> None:
    unknown = "/v1/jobs/01a229c8-a318-7b07-ba0b-0313e4898a0f"
    assert [_asked(client, method, unknown)[0] for method in ("GET", "HEAD")] == [404, 404]
    assert client.http.head("/v1/jobs", headers={"Authorization": "Bearer wrong-wrong"}).status_code == 401
    refused = client.http.head("/v1/batches")
    assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
    assert client.http.delete("/v1/jobs").headers["allow"] == "GET, HEAD, POST"


def test_head_of_a_stream_ends_and_takes_no_place(client: Client) -> None:
    job = client.job()
    batch = client.post({"jobs": [{"document": job["document"], "kind": "page"}]}, path="/v1/batches").json()
    for path in (job["links"]["events"], batch["links"]["events"]):
        started = time.monotonic()
        status, headers, body = _asked(client, "HEAD", path, STREAM)
        assert (status, body) == (200, b"")
        assert headers["content-type"].startswith("text/event-stream")
        assert "content-length" not in headers
        assert time.monotonic() - started < 5
    followed = client.http.build_request("GET", job["links"]["events"], headers={"Accept": STREAM.decode()})
    stream = client.http.send(followed, stream=True)
    _, headers, _ = _asked(client, "HEAD", job["links"]["events"], STREAM)
    got = {name: value for name, value in stream.headers.items() if name not in PASSING}
    stream.close()
    assert got == headers
