"""A stranger with nothing but the OpenAPI page: schemathesis asks everything that it describes."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from portal.answers import ALWAYS
from portal.problems import TABLE
from support.team import Client, House

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
import re
import uuid
import schemathesis

def known(value):
    "Put the one document that the team has where a digest of the right form was made up."
    if isinstance(value, dict):
        return {k: DIGEST if k == "document" and is_digest(v) else known(v) for k, v in value.items()}
    return [known(item) for item in value] if isinstance(value, list) else value

def is_digest(value):
    return isinstance(value, str) and re.fullmatch("sha256:[0-9a-f]{64}", value) is not None

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

DIGEST = "%s"
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
    (tmp_path / "known_documents.py").write_text(HOOKS % digest, encoding="utf-8")
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
