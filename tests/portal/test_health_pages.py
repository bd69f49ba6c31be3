"""The health pages of relay and workers answer within a second, whatever their checks do."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from runtime import metrics
from support.raw_http import connect, read_answer
from support.waiting import eventually

PROGRAM = """
import sys, threading
from runtime.health import Health, serve_health
from runtime import metrics

answers = {"hang": lambda: threading.Event().wait(), "fail": lambda: 1 / 0,
           "no": lambda: Health(ok=False, detail={"why": "testing"}), "yes": lambda: Health(ok=True)}
metrics.count("documents_put_total")
server = serve_health(answers["yes"], answers[sys.argv[1]])
sys.stdin.read()
server.close()
"""


@pytest.mark.parametrize(
    ("ready", "status", "told"),
    [("yes", 200, {"ok": True}), ("no", 503, {"ok": False, "why": "testing"}),
     ("fail", 503, {"ok": False, "error": "ZeroDivisionError"}),
     ("hang", 503, {"ok": False, "error": "no answer within 0.8 s"})],
)  # fmt: skip
def test_pages_answer_in_time(tmp_path: Path, ready: str, status: int, told: dict[str, object]) -> None:
    file = tmp_path / "health.url"
    environment = {
        **os.environ,
        "ONCOMMIT_HEALTH_FILE": str(file),
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, ready], stdin=subprocess.PIPE, env=environment)
    try:
        eventually(file.exists)
        url = file.read_text(encoding="utf-8")
        with httpx.Client(trust_env=False) as client:  # making one takes a while: it reads certificates
            for _ in range(2):
                started = time.monotonic()
                answer = client.get(f"{url}/readyz")
                assert (answer.status_code, answer.json()) == (status, told)
                assert time.monotonic() - started < 1.5
        assert httpx.get(f"{url}/livez", trust_env=False).json() == {"ok": True}
        assert "documents_put_total 1.0" in httpx.get(f"{url}/metrics", trust_env=False).text
        assert httpx.get(f"{url}/nowhere", trust_env=False).status_code == 404
        with connect(url) as silent:  # says nothing; the others are answered all the same
            assert httpx.get(f"{url}/livez", trust_env=False).status_code == 200
            silent.sendall(b"GET /livez HTTP/1.0\r\n\r\n")
            assert read_answer(silent)[0] == 200
    finally:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(10) == 0


def test_a_metric_that_the_table_does_not_name_is_a_mistake() -> None:
    with pytest.raises(KeyError):
        metrics.count("nobody_knows_total")
    with pytest.raises(ValueError, match="label"):
        metrics.count("jobs_accepted_total", team="blue")
    with pytest.raises(TypeError):
        metrics.gauge("documents_put_total", 1)


def test_counting_in_threads_loses_nothing() -> None:
    def work() -> None:
        for _ in range(1000):
            metrics.count("documents_put_bytes_total")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert b"documents_put_bytes_total 4000.0" in metrics.exposition()
