"""A stranger with nothing but the OpenAPI page: schemathesis asks everything that it describes."""

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from portal import examples, resources
from portal.answers import ALWAYS
from portal.asked import MAX_JOB_BYTES
from portal.problems import TABLE
from runtime.blobs import BlobStore
from support.raw_http import exchange, request_head
from support.team import Client, House, token_for

CONFIG = """
workers = 2
[phases.stateful]
enabled = true
[phases.coverage]
enabled = true
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "404"]
[checks.negative_data_rejection]
expected-statuses = ["400", "401", "403", "404", "405", "406", "409", "413", "415", "422", "429", "431"]
[checks.missing_required_header]
expected-statuses = ["400", "401", "403", "415", "422"]
# What no schema can say, and where: a cursor comes from a page, a digest is that of the body, a preview is
# there when its job has ended, and only a job that has not ended can be cancelled.
[[operations]]
include-name = "GET /v1/jobs"
checks.positive_data_acceptance.expected-statuses = ["2xx", "422"]
[[operations]]
include-name = "PUT /v1/documents"
checks.positive_data_acceptance.expected-statuses = ["2xx", "422"]
[[operations]]
include-name = "GET /v1/jobs/{job_id}/preview"
checks.positive_data_acceptance.expected-statuses = ["2xx", "404", "409"]
[[operations]]
include-name = "HEAD /v1/jobs/{job_id}/preview"
checks.positive_data_acceptance.expected-statuses = ["2xx", "404", "409"]
[[operations]]
include-name = "HEAD /v1/jobs"
checks.positive_data_acceptance.expected-statuses = ["2xx", "422"]
[[operations]]
include-name = "POST /v1/jobs/{job_id}/cancel"
checks.positive_data_acceptance.expected-statuses = ["2xx", "404", "409"]
"""


HOOKS = """
import json
import re
import uuid
import schemathesis

def known(value):
    "Put the one document that the team has where a digest of the right form was made up."
    if isinstance(value, dict):
        return {k: known(v) for k, v in value.items()}
    if isinstance(value, str):
        return re.sub("sha256:[0-9a-f]{64}", DIGEST, value)
    return [known(item) for item in value] if isinstance(value, list) else value

@schemathesis.hook
def map_body(context, body):
    return known(body)

@schemathesis.hook
def before_call(context, case, kwargs):
    "Give what is meant to be taken its own key and the document: examples pass by map_body and share a key."
    if case.meta is None or not case.meta.generation.mode.is_positive:
        return  # an edit would have it judged anew, and taken for meant to be taken
    if "Idempotency-Key" in (case.headers or {}):
        case.headers["Idempotency-Key"] = str(uuid.uuid4())
    if case.media_type == NDJSON:
        case.body = LINES  # the schema says text, and means a job a line
    case.body = plain(known(case.body))
    if isinstance(case.body, dict) and "jobs" in case.body:
        case.body["jobs"] = case.body["jobs"][:100]  # 10,000 are accepted in a test of their own

def plain(value):
    "Write integers as integers: to a schema 5.0 is one, to the portal (its description says so) it is not."
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value

NDJSON = "application/x-ndjson"

@schemathesis.serializer(NDJSON)
def lines(context, value):
    text = value if isinstance(value, str | bytes) else json.dumps(value)
    return text if isinstance(text, bytes) else text.encode()

DIGEST, LINES = %r, %r
"""


@pytest.mark.timeout(300)
def test_schemathesis_finds_nothing(
    client: Client, house: House, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    digest = client.put(b"test")  # the schema's own example
    job = client.post({"document": digest, "kind": "page"}).json()
    client.post({"jobs": [{"document": digest, "kind": "page"}]}, path="/v1/batches")
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG, encoding="utf-8")
    (tmp_path / "known_documents.py").write_text(HOOKS % (digest, examples.LINES), encoding="utf-8")
    variables = {**os.environ, "SCHEMATHESIS_HOOKS": "known_documents", "PYTHONPATH": str(tmp_path)}
    run = subprocess.run(
        [
            Path(sys.executable).with_name("schemathesis"), "--config-file", config, "run",
            f"{client.url}/openapi.json", "--header", f"Authorization: Bearer {client.token}",
            "--max-examples", "8", "--seed", "1", "--request-timeout", "60", "--checks", "all", "--no-color",
            "--exclude-path-regex", "^/(livez|readyz|metrics|problems)$",
        ],
        check=False, capture_output=True, text=True, timeout=280, cwd=tmp_path, env=variables,
    )  # fmt: skip
    lines = run.stdout.splitlines()
    told = [line.strip("= ") for line in lines if " generated" in line or line.startswith("=")]
    record_property("told at the end", f"schemathesis: {'; '.join(told[-2:])}")
    assert run.returncode == 0, run.stdout[-16000:] + run.stderr[-2000:]
    assert "No issues found" in run.stdout or "passed" in run.stdout
    assert house.portal.running
    assert client.http.get(job["links"]["self"]).status_code == 200


def test_the_page_of_problems_names_every_problem(client: Client) -> None:
    told = client.http.get("/problems").json()["problems"]
    assert [row["type"] for row in told] == [f"/problems/{kind.slug}" for kind in TABLE]
    assert set(ALWAYS) <= {kind.slug for kind in TABLE}


def test_openapi_declares_success_and_problems_of_every_route(client: Client) -> None:
    schema = client.http.get("/openapi.json").json()
    for path, item in schema["paths"].items():
        for method, operation in item.items():
            assert operation["summary"], (method, path)
            if path.startswith("/v1"):
                assert {"401", "403", "429", "503"} <= set(operation["responses"]), (method, path)
                assert operation["security"], (method, path)


#: Of HTTP itself: what a body is, when it was sent, and how its connection goes on.
OF_HTTP = {"content-type", "content-length", "date", "connection", "transfer-encoding"}
BYTES = {"image/png", "application/octet-stream"}
SSE = "text/event-stream"
UNKNOWN = "01a229c8-a318-7b07-ba0b-0313e4898a0f"


def operations(schema: Any) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield method, path and declaration of each operation."""
    for path, item in schema["paths"].items():
        for method, operation in item.items():
            yield method.upper(), path, operation


def test_every_response_with_a_body_has_an_example_that_is_one(client: Client) -> None:
    schema = client.http.get("/openapi.json").json()
    for method, path, operation in operations(schema):
        for status, response in operation["responses"].items():
            for media_type, content in response.get("content", {}).items():
                if media_type in BYTES:  # no text shows them
                    continue
                assert {"example", "examples"} & content.keys(), (method, path, status, media_type)
                assert content.get("examples") != {}, (method, path, status)
        for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
            assert media_type in BYTES or "example" in content, (method, path, media_type)
    for name, example in examples.MODELS.items():
        assert schema["components"]["schemas"][name]["example"] == example
        model: type[BaseModel] = getattr(resources, name)
        if name != "Problem":  # which is raised, and told by `document`
            assert set(model.model_validate(example).model_dump()) == set(example), name
    resources.JOB_REQUEST.validate_python(examples.JOB_REQUEST)


def finished(house: House, client: Client) -> dict[str, Any]:
    """Return a job that has a preview."""
    job = client.job()
    content = b"\x89PNG\r\n\x1a\n" + uuid.uuid4().bytes * 8
    digest = BlobStore(Path(house.processes.blobs)).put_bytes(content)
    worker, ids = uuid.uuid4(), [uuid.UUID(job["id"])]
    client.database.admin.execute("SELECT * FROM claim_jobs(%s, %s, ARRAY[1])", [worker, ids]).fetchall()
    client.database.admin.execute(
        "SELECT * FROM finish_jobs(%s, %s, ARRAY[1], ARRAY[1], %s, %s::bigint[])",
        [worker, ids, [digest], [len(content)]],
    ).fetchall()
    return dict(client.http.get(job["links"]["self"]).json())


class Walk:
    """Asks, and compares each answer with what is declared of its operation."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.declared = {
            (method, path): operation["responses"]
            for method, path, operation in operations(client.http.get("/openapi.json").json())
        }
        self.seen: set[tuple[str, str, int]] = set()

    def ask(self, expected: int, method: str, path: str, here: str, **given: Any) -> httpx.Response:
        """Ask `here`, an address of the route `path`."""
        answer = self.client.http.request(method, here, **given)
        assert answer.status_code == expected, (method, here, answer.text)
        self.judge(method, path, answer.status_code, answer.headers)
        return answer

    def judge(self, method: str, path: str, status: int, headers: Mapping[str, str]) -> None:
        """Compare one answer."""
        what = (method, path, status)
        assert str(status) in self.declared[method, path], what
        declared = self.declared[method, path][str(status)]
        known = {name.lower() for name in declared.get("headers", {})} | OF_HTTP
        assert {name.lower() for name in headers} <= known, what
        if media_type := headers.get("content-type", "").partition(";")[0]:
            assert media_type in declared.get("content", {}), (*what, media_type)
        self.seen.add(what)


def of_everybody(walk: Walk, names: Mapping[str, str]) -> None:
    """Ask every route what any of them may be asked wrongly, and the GETs and HEADs rightly."""
    reader = token_for(walk.client.database, walk.client.team, "operate")[0]
    for method, path in walk.declared:
        here = path.format_map(names)
        long = {"X-Long": "x" * 20_000}
        walk.ask(431, method, path, here, headers=long)
        status, headers, _ = exchange(walk.client.url, request_head(method, here, None, [(b"X", b"\0")]))
        assert status == 400
        walk.judge(method, path, status, headers)
        if method in {"GET", "HEAD"}:
            walk.ask(200, method, path, here)
        if not path.startswith("/v1"):
            continue
        walk.ask(401, method, path, here, headers={"Authorization": "Bearer wrong-wrong-wrong"})
        walk.ask(422, method, path, f"{here}?twice=1&twice=2")
        if path != "/v1/jobs/{job_id}/cancel":
            walk.ask(403, method, path, here, headers={"Authorization": f"Bearer {reader}"})
        if "{" in path:
            walk.ask(404, method, path, path.format_map(dict.fromkeys(names, UNKNOWN)))


def of_acceptance(walk: Walk, document: str) -> None:
    """Ask POST for all that it says."""
    one = {"document": document, "kind": "page"}
    for path, body in (("/v1/jobs", one), ("/v1/batches", {"jobs": [one]})):
        key = {"Idempotency-Key": path}
        walk.ask(202, "POST", path, path, json=body, headers=key)
        again = walk.ask(202, "POST", path, path, json=body, headers=key)
        assert again.headers["idempotent-replayed"] == "true"
        walk.ask(400, "POST", path, path, json=body)
        walk.ask(413, "POST", path, path, json={"x": "x" * 128 * MAX_JOB_BYTES}, headers=key)
        walk.ask(415, "POST", path, path, content=b"x", headers=key)
        walk.ask(415, "POST", path, path, json=body, headers={**key, "Content-Encoding": "gzip"})
        walk.ask(422, "POST", path, path, json={}, headers=key)
        with walk.client.database.server.connect(walk.client.database.name) as holder:
            holder.execute("BEGIN")
            lock = f"{walk.client.team}|held"
            holder.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [lock])
            walk.ask(409, "POST", path, path, json=body, headers={"Idempotency-Key": "held"})


def of_the_rest(walk: Walk, job: Mapping[str, Any], blobs: Path) -> None:
    """Ask for documents, streams, cancellation and previews."""
    walk.ask(201, "PUT", "/v1/documents", "/v1/documents", content=uuid.uuid4().bytes)
    walk.ask(200, "PUT", "/v1/documents", "/v1/documents", content=b"hello")
    walk.ask(422, "PUT", "/v1/documents", "/v1/documents", content=b"", headers={"Content-Digest": "x"})
    walk.ask(415, "PUT", "/v1/documents", "/v1/documents", content=b"x", headers={"Content-Encoding": "br"})
    path = "/v1/jobs/{job_id}/events"
    walk.ask(200, "GET", path, job["links"]["events"], headers={"Accept": SSE})
    walk.ask(204, "GET", path, job["links"]["events"], headers={"Accept": SSE, "Last-Event-ID": "3"})
    path, other = "/v1/jobs/{job_id}/cancel", walk.client.job()
    walk.ask(409, "POST", path, f"{job['links']['self']}/cancel")
    walk.ask(200, "POST", path, f"{other['links']['self']}/cancel")
    running = walk.client.job()
    walk.client.database.admin.execute(
        "SELECT * FROM claim_jobs(%s, %s, ARRAY[1])", [uuid.uuid4(), [uuid.UUID(running["id"])]]
    ).fetchall()
    walk.ask(202, "POST", path, f"{running['links']['self']}/cancel")
    path, here = "/v1/jobs/{job_id}/preview", job["links"]["preview"]
    etag = walk.ask(200, "GET", path, here).headers["etag"]
    walk.ask(206, "GET", path, here, headers={"Range": "bytes=0-3"})
    walk.ask(304, "GET", path, here, headers={"If-None-Match": etag})
    walk.ask(416, "GET", path, here, headers={"Range": "bytes=9999-"})
    walk.ask(409, "GET", path, running["links"]["preview"])
    BlobStore(blobs).path(job["artifact"]).unlink()
    walk.ask(503, "GET", path, here)


def test_every_status_and_every_header_of_real_answers_is_declared(client: Client, house: House) -> None:
    walk = Walk(client)
    job = finished(house, client)
    one = {"document": job["document"], "kind": "page"}
    batch = client.post({"jobs": [one]}, path="/v1/batches").json()
    names = {"digest": job["document"], "job_id": job["id"], "batch_id": batch["id"]}
    of_everybody(walk, names)
    of_acceptance(walk, job["document"])
    of_the_rest(walk, job, Path(house.processes.blobs))
    assert {(method, path) for method, path, _ in walk.seen} == set(walk.declared)
    assert {status for _, _, status in walk.seen} == {
        200, 201, 202, 204, 206, 304, 400, 401, 403, 404, 409, 413, 415, 416, 422, 431, 503,
    }  # fmt: skip
