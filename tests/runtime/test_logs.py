"""Logs: no secret anywhere, one record a line whatever the input, four fields on each line about a job."""

import ast
import json
import logging
import secrets
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from runtime import logs
from support.bench import terminate_backends
from support.postgres import Database
from support.processes import Processes, Running
from support.raw_http import connect
from support.team import House
from support.waiting import eventually

ROOT = Path(__file__).parents[2]
FIELDS = {"job", "team", "dispatch", "attempt"}
POISON = "INSERT INTO outbox (message_id, queue, lane, priority, body) VALUES (%s, 'previews', 'acme', 5, %s)"
FORGERY = 'x\n{"event":"forged","level":"info"}\r\n\x1b[31m\u2028\x00'


def told(process: Running) -> list[dict[str, Any]]:
    """Return the process's lines, each of which is one JSON object: but for those of Dramatiq's launcher."""
    lines = [line for line in process.log_text().splitlines() if "[dramatiq.MainProcess]" not in line]
    assert lines, process.name
    return [json.loads(line) for line in lines]


def test_secrets_are_nowhere_and_nothing_forges_a_line(processes: Processes, database: Database) -> None:
    canary = f"canary{secrets.token_hex(8)}"
    admin, forgery = database.admin, FORGERY.replace("\x00", "")
    processes.valkey.client.config_set("requirepass", canary)
    redis_url = f"redis://:{canary}@127.0.0.1:{processes.valkey.port}/0"
    given = {"ONCOMMIT_REDIS_URL": redis_url, "ONCOMMIT_BACKOFF_BASE_MS": "10"}
    started = [getattr(processes, name)(ready=False, **given) for name in ("portal", "relay", "worker")]
    passwords = {urlsplit(process.env["ONCOMMIT_DATABASE_URL"]).password for process in started} - {None}
    assert all(len(password) > 6 for password in passwords), "a short one would be found by chance"
    portal, relay, worker = (process.wait_ready() for process in started)
    client = House(database, portal, processes).client()
    bodies = trouble(client, portal, canary)
    insert = (
        "INSERT INTO outbox (message_id, queue, lane, priority, body) VALUES (%s, 'previews', 'acme', 5, %s)"
    )
    admin.execute(insert, [f"acme|{forgery}", "{}" + forgery])
    # Every link is cut once: what the drivers say about it is logged too.
    for application in ("oncommit portal", "oncommit relay", "oncommit worker"):
        terminate_backends(admin, application)
    processes.valkey.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")  # type: ignore[no-untyped-call]
    processes.valkey.config(requirepass=f"another{secrets.token_hex(4)}")
    relay.wait_log("redis_away")
    processes.valkey.client.config_set("requirepass", canary)
    ended = "SELECT count(*) FILTER (WHERE finished_at IS NULL) FROM jobs"
    eventually(lambda: admin.execute(ended).fetchone() == (0,), timeout=60)
    eventually(lambda: admin.execute("SELECT count(*) FROM quarantine").fetchone() == (1,), timeout=30)
    pages = [process.page(path) for process in started for path in ("/metrics", "/readyz")]
    for process in (portal, relay, worker):
        process.stop()
        lines = told(process)
        for secret in (canary, client.token, *passwords):
            assert secret not in process.log_text(), process.name
        assert not [line for line in lines if line["event"] == "forged"]
        assert all(line["process"] == process.name for line in lines)
        assert "\x1b" not in process.log_text()
    for text in [*bodies, *pages]:
        assert canary not in text
        assert client.token not in text
    about_jobs = [line for line in told(worker) if "job" in line]
    assert {line["event"] for line in about_jobs} >= {"claim ended", "render ended without a preview"}
    assert all(line.keys() >= FIELDS for line in about_jobs)


def trouble(client: Any, portal: Running, canary: str) -> list[str]:
    """Make requests that fail in many ways, with secrets where they belong and text that forges lines."""
    document = client.put(b"hello")
    bodies = [
        client.post({"document": document, "kind": "page", "title": FORGERY[:-1], "simulate": simulate}).text
        for simulate in ({}, {"fail_first": 1}, {"fail_permanently": True})
    ]
    with httpx.Client(base_url=portal.url, trust_env=False) as http:
        headers = [{"Authorization": text} for text in (f"Bearer {canary}", f"Basic {canary}", canary)]
        bodies += [http.get("/v1/jobs", headers=header).text for header in headers]
        bodies.append(
            http.post("/v1/jobs", json={"document": FORGERY}, headers={"Idempotency-Key": "k"}).text
        )
        bodies.append(http.get("/%0a%7b%22event%22:%22forged%22%7d%1b[31m").text)
    with connect(portal.url) as raw:
        raw.sendall(
            f"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {canary}\nx:\x1b[31m\r\n\r\n".encode()
        )
        raw.recv(4096)
    return bodies


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://me:CANARY@host/db", "redis://:CANARY@host:1/0", "host=x password=CANARY user=y",
        "password='CANARY with spaces' user=y", "Authorization: Bearer CANARY", "bearer CANARY",
        "rediss://default:CANARY@[::1]:6379", "PASSWORD = CANARY",
    ],
)  # fmt: skip
def test_passwords_and_tokens_are_masked_wherever_they_stand(text: str) -> None:
    assert "CANARY" not in logs.redact(f"cannot connect to {text}: refused")


@pytest.mark.parametrize(
    "text",
    [
        "Send `Authorization: Bearer <token>` with a token that is neither expired nor revoked.",
        "a bearer token is needed", "basic settings, and bearer tokens.", "authorization failed",
    ],
)  # fmt: skip
def test_what_only_speaks_of_tokens_is_left_as_it_is(text: str) -> None:
    assert logs.redact(text) == text


def test_odd_values_make_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    before = logging.getLogger().handlers[:], logging.getLogger().level
    try:
        logs.configure("test", "debug")
        log = logs.get_logger("test")
        for value in (
            FORGERY,
            "\ud800",
            {"a": {1: FORGERY}},
            b"\xff\n",
            2**70,
            float("nan"),
            object(),
            {FORGERY},
        ):
            log.info("odd", value=value)
        logging.getLogger("foreign").warning("%s and %s", FORGERY, "redis://:CANARY@h/0")
        log.error("failed", exc_info=ValueError("postgresql://u:CANARY@h/d\n" + FORGERY))
        with logs.about(job="j", team="t", dispatch=1, attempt=None):
            logging.getLogger("foreign").warning("a driver's line within a job")
    finally:
        logging.getLogger().handlers[:], level = before
        logging.getLogger().setLevel(level)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 11
    assert "CANARY" not in "".join(lines)
    assert json.loads(lines[-1]).keys() >= FIELDS


def test_a_line_that_names_a_job_names_the_rest() -> None:
    for path in (path for package in ("actors", "broker", "relay") for path in (ROOT / package).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name("log")), keywords=keywords):
                    names = {keyword.arg for keyword in keywords}
                    assert "job" not in names or names >= FIELDS, f"{path}:{node.lineno}"
                case _:
                    pass
