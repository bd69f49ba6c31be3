"""The portal's client: what it repeats, how long it waits, what it tells. Against a real, scripted server."""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.client import Client
from ops.delivery import Wish, as_jobs, deliver
from ops.patience import LONGEST_SECONDS, Patience, advised, pause
from ops.ports import free_port
from ops.submission import Kind, Order, Paper
from ops.trying import PortalError

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
ORDER = Order("sha256:" + "0" * 64, Kind.page, 5, "a.txt")


@pytest.mark.parametrize(
    ("status", "headers", "seconds"),
    [
        (503, {"retry-after": "2"}, 2.0),
        (429, {"retry-after": "7"}, 7.0),
        (409, {"retry-after": "1"}, 1.0),
        (409, {}, None),
        (503, {}, 0.1),
        (None, {}, 0.1),
        (502, {"retry-after": "Thu, 01 Jan 2026 12:00:05 GMT"}, 5.0),
        (400, {"retry-after": "1"}, None),
        (401, {}, None),
        (422, {}, None),
        (500, {}, None),
        (507, {"retry-after": "60"}, None),
    ],
)
def test_only_a_passing_fault_is_tried_again(
    status: int | None, headers: dict[str, str], seconds: float | None
) -> None:
    assert pause(status, headers, 1, NOW) == seconds


@given(st.integers(1, 10_000))
def test_without_advice_the_pause_grows_up_to_a_bound(tries: int) -> None:
    now, after = (pause(503, {}, n, NOW) for n in (tries, tries + 1))
    assert now is not None
    assert after is not None
    assert 0 < now <= after <= LONGEST_SECONDS


@given(st.text(max_size=40))
def test_no_retry_after_header_whatever_it_holds_is_an_error(text: str) -> None:
    assert advised(text, NOW) >= 0


def test_a_date_in_the_past_means_now() -> None:
    assert advised("Thu, 01 Jan 2026 11:00:00 GMT", NOW) == 0


@dataclass
class Script:
    """Answers to give in turn, the last one for ever; and what came in."""

    answers: list[tuple[int, dict[str, str], Any]]
    seen: list[tuple[str, str, bytes, str | None]] = field(default_factory=list)

    def next(self) -> tuple[int, dict[str, str], Any]:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, script: Script, *args: Any) -> None:
        self.script = script
        super().__init__(*args)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _answer(self) -> None:
        self.script.seen.append((self.command, self.path, self._body(), self.headers.get("Idempotency-Key")))
        status, headers, content = self.script.next()
        if status == 0:  # hang up without an answer
            self.close_connection = True
            return
        body = orjson.dumps(content)
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_PUT = do_POST = do_GET = _answer  # noqa: N815 -- the base class names them

    def log_message(self, *args: Any) -> None: ...


@contextmanager
def portal(*answers: tuple[int, dict[str, str], Any]) -> Iterator[tuple[Script, Client, list[float]]]:
    """Serve the script; the client's pauses are noted, not slept."""
    script = Script(list(answers))
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, script))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    slept: list[float] = []
    url = f"http://127.0.0.1:{server.server_port}"
    try:
        with Client(url, "oc_token", Patience(10.0), sleep=slept.append) as client:
            yield script, client, slept
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_busy_portal_is_asked_again_with_the_same_key() -> None:
    busy = (503, {"Retry-After": "2"}, {})
    with portal(busy, (429, {"Retry-After": "3"}, {}), (0, {}, {}), (202, {}, {"id": "x"})) as (
        script,
        client,
        slept,
    ):
        accepted = client.post(ORDER, "run")
    assert accepted.job == {"id": "x"}
    assert not accepted.replayed
    assert slept == [2.0, 3.0, 0.4]
    assert {key for *_, key in script.seen} == {ORDER.key("run")}
    assert len({body for _, _, body, _ in script.seen}) == 1


def test_patience_ends_before_a_pause_that_would_outlast_it() -> None:
    told = {"title": "Away", "detail": "Come back."}
    with (
        portal((503, {"Retry-After": "11"}, told)) as (script, client, slept),
        pytest.raises(PortalError, match=r"503 Away: Come back\.") as caught,
    ):
        client.job("x")
    assert not caught.value.hopeless
    assert (slept, len(script.seen)) == ([], 1)


def test_a_replayed_key_is_told() -> None:
    with portal((202, {"Idempotent-Replayed": "true"}, {"id": "x"})) as (_, client, _):
        assert client.post(ORDER, "").replayed


@pytest.mark.parametrize(
    ("first", "replayed"),
    [
        ((0, {}, {}), False),  # the answer was lost: it may have been taken then
        ((503, {}, {}), False),
        ((429, {"Retry-After": "1"}, {}), True),  # refused: whoever was first, it was not this request
    ],
)
def test_a_request_of_ours_that_was_tried_again_is_no_replay_of_an_earlier_run(
    first: tuple[int, dict[str, str], Any], replayed: bool
) -> None:
    with portal(first, (202, {"Idempotent-Replayed": "true"}, {"id": "x"})) as (_, client, _):
        assert client.post(ORDER, "").replayed is replayed


def test_two_papers_that_are_one_job_are_no_replay_of_an_earlier_run(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"a")
    stored = (200, {}, {"document": f"sha256:{hashlib.sha256(b'a').hexdigest()}"})
    answers = ({}, {"Idempotent-Replayed": "true"}, {"Idempotent-Replayed": "true"})
    for headers in (answers[:2], answers[1:]):
        script = [answer for one in headers for answer in (stored, (202, one, {"id": "x"}))]
        with portal(*script) as (_, client, _):
            wish = Wish([Kind.page], 5, "")
            made = [job for _ in headers for job in deliver(client, Paper(file, "a.txt"), wish)]
            assert [job.replayed for job in as_jobs(made)] == [
                all("Idempotent-Replayed" in h for h in headers)
            ]


def test_trouble_is_told_once_until_it_is_over() -> None:
    away = (503, {"Retry-After": "2"}, {"title": "Away", "detail": "PostgreSQL does not serve."})
    good = (200, {}, {"id": "x"})
    told: list[str] = []
    with portal(away, away, good, away, good) as (_, client, _), Client(
        client.url, "oc_x", Patience(10.0), sleep=lambda _: None, tell=told.append
    ) as teller:  # fmt: skip
        teller.job("x")
        assert len(told) == 1
        assert "503 Away: PostgreSQL does not serve." in told[0]
        assert "Trying again for up to 10 s." in told[0]
        teller.job("x")
    assert len(told) == 2


def test_a_refusal_tells_the_problem_and_its_errors() -> None:
    problem = {"title": "Wrong", "detail": "Correct it.", "errors": [{"pointer": "/kind", "detail": "odd"}]}
    with (
        portal((422, {}, problem)) as (_, client, slept),
        pytest.raises(PortalError, match=r"422 Wrong: Correct it\. /kind odd\."),
    ):
        client.post(ORDER, "")
    assert slept == []


def test_a_refused_token_is_hopeless_for_every_other_request() -> None:
    with (
        portal((401, {}, {"title": "No", "detail": "No."})) as (_, client, _),
        pytest.raises(PortalError, match="ONCOMMIT_TOKEN") as caught,
    ):
        client.job("x")
    assert caught.value.hopeless


def test_an_answer_that_is_no_problem_document_is_told_as_it_is() -> None:
    with (
        portal((404, {}, ["not", "the", "portal"])) as (_, client, _),
        pytest.raises(PortalError, match="404 Not Found"),
    ):
        client.job("x")


def test_an_upload_is_streamed_again_from_its_start_and_counted_once(tmp_path: Path) -> None:
    file = tmp_path / "large"
    content = bytes(range(256)) * 5_000
    file.write_bytes(content)
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    sent: list[int] = []
    with portal((503, {}, {}), (200, {}, {"document": digest})) as (script, client, _):
        assert client.put(file, sent.append) == digest
    assert [body == content for _, _, body, _ in script.seen] == [True, True]
    assert sum(sent) == len(content)
    assert max(sent) < len(content)


def test_a_portal_that_stored_other_bytes_is_not_believed(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"a")
    with (
        portal((200, {}, {"document": "sha256:" + "1" * 64})) as (_, client, _),
        pytest.raises(PortalError, match="other bytes"),
    ):
        client.put(file)


def test_a_preview_appears_whole(tmp_path: Path) -> None:
    with portal((200, {}, "picture")) as (_, client, _):
        client.preview("x", tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes() == b'"picture"'
    assert [file.name for file in tmp_path.iterdir()] == ["p.png"]


def test_nobody_at_the_address_is_told_with_the_address() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with (
        Client(url, "oc_x", Patience(0.0)) as client,
        pytest.raises(PortalError, match=f"no portal answers at {url}") as caught,
    ):
        client.job("x")
    assert caught.value.hopeless


@pytest.mark.parametrize("url", ["", "portal:80", "ftp://portal", "http://", "http://[::1"])
def test_what_is_no_url_is_told_at_once(url: str) -> None:
    with pytest.raises(PortalError, match="ONCOMMIT_URL"):
        Client(url, "oc_x")


@pytest.mark.parametrize("token", ["", "two words", "line\n", "schlüssel"])
def test_what_is_no_token_is_told_at_once_and_not_shown(token: str) -> None:
    with pytest.raises(PortalError, match="ONCOMMIT_TOKEN") as caught:
        Client("http://127.0.0.1:1", token)
    assert not token or token not in str(caught.value)
