"""One trace leads from the request to the end of the job, through four processes' hands."""

import gzip
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

from support.processes import Processes
from support.team import House
from support.trace_tree import drawn, spans, tree
from support.waiting import eventually

ROOT = Path(__file__).parents[2]
CALLER = "4bf92f3577b34da6a3ce929d0e0e4736"
KEY = "order-4711"
SECRET = "a name that no trace may hold"

# The extra's package cannot be imported here, as where it is not installed.
WITHOUT_EXTRA = """
import sys
sys.modules["opentelemetry"] = None
from runtime import tracing
with tracing.span("x", "not even a header", a=1) as here:
    here.tell("y", b=2)
    assert here.traceparent is None
tracing.published([b"{}"], tracing.now_ns())
tracing.configure("test", "off")
tracing.shutdown()
try:
    tracing.configure("test", "file:/nowhere")
except ValueError as error:
    print(error)
"""


def test_one_trace_from_the_request_to_the_finish(
    processes: Processes, database: Any, tmp_path: Path
) -> None:
    file = tmp_path / "spans.jsonl"
    record = {"ONCOMMIT_TRACES": f"file:{file}"}
    portal = processes.portal(ready=False, **record)
    relay = processes.relay(ready=False, **record)
    worker = processes.worker(threads=2, ready=False, ONCOMMIT_BACKOFF_BASE_MS="50", **record)
    for process in (portal, relay, worker):
        process.wait_ready()
    client = House(database, portal, processes).client()
    body = {"document": client.put(), "kind": "page", "title": SECRET, "simulate": {"fail_first": 1}}
    answer = client.post(body, key=KEY, traceparent=f"00-{CALLER}-00f067aa0ba902b7-01")
    assert answer.status_code == 202, answer.text

    def complete() -> bool:  # the finish is committed when the thread, and its span, have gone on
        names = [node.span["name"] for node in tree(spans(file), CALLER)]
        return names.count("preview") == 2 and "finish" in names

    eventually(complete, timeout=60)
    nodes = tree(spans(file), CALLER)
    print(drawn(nodes))  # noqa: T201 -- `pytest -s` shows what a trace looks like
    assert [(node.depth, node.label) for node in nodes] == [
        (0, "portal: POST /v1/jobs"),
        (1, "portal: accept"),
        (1, "relay: publish"),
        (1, "worker: preview"),
        (2, "worker: claim"),
        (2, "worker: render"),
        (2, "worker: end"),
        (1, "relay: publish"),
        (1, "worker: preview"),
        (2, "worker: claim"),
        (2, "worker: render"),
        (2, "worker: finish"),
    ]
    assert nodes[0].span["parent"] == "00f067aa0ba902b7", "the caller's own span"
    assert nodes[1].span["attributes"] == {"key": KEY, "outcome": "new"}
    assert nodes[3].span["attributes"]["job"] == answer.json()["id"]
    assert KEY not in portal.page("/metrics"), "a label for each request would never end"
    assert SECRET not in file.read_text(encoding="utf-8")
    assert not any("readyz" in span["name"] for span in spans(file)), "probes make no traces"


class Collector(BaseHTTPRequestHandler):
    """Keeps what is sent by OTLP over HTTP: (path, bytes of each message)."""

    sent: ClassVar[list[tuple[str, bytes]]] = []

    def do_POST(self) -> None:
        """Take a message."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.sent.append((self.path, body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_a_collector_gets_the_spans_of_every_process(processes: Processes, database: Any) -> None:
    Collector.sent.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        record = {
            "ONCOMMIT_TRACES": "otlp",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        }
        portal = processes.portal(**record)
        relay, worker = processes.relay(**record), processes.worker(threads=1, **record)
        client = House(database, portal, processes).client()
        job = client.job()
        eventually(
            lambda: client.http.get(f"/v1/jobs/{job['id']}").json()["status"] == "succeeded", timeout=60
        )
        for process in (portal, relay, worker):
            process.stop()  # what is not sent yet is sent now
        got = b"".join(body for path, body in Collector.sent if path == "/v1/traces")
        server.shutdown()
    for name in (b"POST /v1/jobs", b"accept", b"publish", b"preview", b"claim", b"render", b"finish"):
        assert name in got, name


def test_without_the_extra_nothing_is_recorded_and_asking_for_it_says_what_to_install() -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    said = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRA], env=environment, capture_output=True, text=True, check=True
    )
    assert "oncommit[tracing]" in said.stdout
