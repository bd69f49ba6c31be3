"""Express: what a request leaves behind (log lines, numbers, spans) is the same by either way."""

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import structlog
from structlog.testing import capture_logs

from runtime import metrics, tracing
from support.both_ways import Body, Head, ask, both
from support.hostile import TYPE, good
from support.team import Client, House
from support.trace_tree import spans, tree

TRACE = "4bf92f3577b34da6a3ce929d0e0e47"
COUNTED = re.compile(
    r"^(http_requests_total|requests_decided_total|jobs_accepted_total|http_request_seconds_count)"
    r"(\{.*?\}) (\d+)\.0$",
    re.MULTILINE,
)
CHANGES = {"milliseconds", "team", "trace", "job", "timestamp"}


class Answered(logging.Handler):
    """Keeps the lines of requests, which go to logging without structlog's chain."""

    def __init__(self, lines: list[Any]) -> None:
        super().__init__()
        self.lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.msg)


@contextmanager
def log_lines() -> Iterator[list[Any]]:
    """Keep what is logged in the block."""
    logger = logging.getLogger("portal.door")
    with capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        handler = Answered(lines)
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        try:
            yield lines
        finally:
            logger.removeHandler(handler)
            logger.setLevel(logging.NOTSET)


def numbers() -> Counter[tuple[str, str]]:
    """Return what is counted in this process of requests and jobs."""
    return Counter(
        {(name, labels): int(n) for name, labels, n in COUNTED.findall(metrics.exposition().decode())}
    )


def requests(client: Client, digest: str) -> list[tuple[Head, Body]]:
    """Return requests of a team, each in a trace of its own: taken, repeated, refused, and one who leaves."""
    mine = (b"Authorization", b"Bearer " + client.token.encode())
    k, other, m = ((b"Idempotency-Key", name) for name in (b"k", b"other", b"m"))
    asked: list[tuple[Head, Body]] = [
        ([mine, k, TYPE], good(digest)),
        ([mine, k, TYPE], good(digest)),
        ([mine, k, TYPE], good(digest, kind="thumbnail")),
        ([mine, other, TYPE], good(digest, kind="thumbnail")),
        ([mine, m, TYPE], good("sha256:" + "1" * 64)),
        ([mine, m, TYPE], b"{"),
        ([mine, m], good(digest)),
        ([mine, TYPE], good(digest)),
        ([m, TYPE], good(digest)),
        ([mine, m, TYPE], None),
    ]
    return [
        ([*head, (b"Traceparent", f"00-{TRACE}{n:02x}-00f067aa0ba902b7-01".encode())], body)
        for n, (head, body) in enumerate(asked)
    ]


def left_behind(file: Path, lines: list[Any], before: Counter[tuple[str, str]], traces: int) -> Any:
    """Return the log lines, what was counted since, and each trace's spans."""
    said = [{name: "" if name in CHANGES else value for name, value in line.items()} for line in lines]
    nodes = [
        [(node.depth, node.label, node.span["attributes"]) for node in tree(spans(file), f"{TRACE}{n:02x}")]
        for n in range(traces)
    ]
    return said, numbers() - before, nodes


def test_lines_numbers_and_spans_are_the_same(house: House, tmp_path: Path) -> None:
    clients = house.client(), house.client()  # one for each way: a key is of its team
    found: list[Any] = []

    async def scene() -> None:
        async with both(house, tmp_path / "blobs") as ways:
            for n, (way, client) in enumerate(zip(ways, clients, strict=True)):
                asked = requests(client, client.put())
                before = numbers()
                tracing.configure("test", f"file:{tmp_path / str(n)}")
                try:
                    with log_lines() as lines:
                        for head, body in asked:
                            await ask(way, head, body)
                finally:
                    tracing.shutdown()
                found.append(left_behind(tmp_path / str(n), lines, before, len(asked)))

    asyncio.run(scene())
    theirs, mine = found
    assert mine == theirs
    said, counted, nodes = mine
    answered = [line for line in said if line["event"] == "answered"]
    assert [line["status"] for line in answered] == [202, 202, 422, 202, 422, 400, 415, 400, 401, 499]
    assert {line["route"] for line in answered} == {"/v1/jobs"}
    assert [line.get("key") for line in answered] == ["k", "k", "k", "other", *"mmm", None, None, "m"]
    assert ["job" in line for line in answered] == [True, True, False, True, *[False] * 6]
    assert counted["http_requests_total", '{method="POST",route="/v1/jobs",status="202"}'] == 3
    assert counted["requests_decided_total", '{outcome="old"}'] == 1
    assert counted["jobs_accepted_total", '{kind="thumbnail"}'] == 1
    assert nodes[0] == [
        (0, "test: POST /v1/jobs", {"http.response.status_code": 202}),
        (1, "test: accept", {"key": "k", "outcome": "new"}),
    ]
    assert nodes[8] == [(0, "test: POST /v1/jobs", {"http.response.status_code": 401})]


def test_who_leaves_before_the_end_is_counted_as_such_either_way(house: House, tmp_path: Path) -> None:
    client = house.client()
    headers = [
        (b"Authorization", b"Bearer " + client.token.encode()), (b"Idempotency-Key", b"gone"), TYPE,
    ]  # fmt: skip

    async def leave() -> None:
        async with both(house, tmp_path / "blobs") as apps:
            for app in apps:
                await ask(app, headers, None)

    before = numbers()
    asyncio.run(leave())
    label = '{method="POST",route="/v1/jobs",status="499"}'
    assert (numbers() - before)["http_requests_total", label] == 2
    assert not [labels for _, labels in numbers() - before if 'status="5' in labels]
