"""A client of the portal: puts documents, asks for jobs, follows them, fetches previews.

Everything it sends may be repeated: it repeats what a passing fault has stopped, as long as its patience
lasts (`ops.trying`). Several threads may use one client.
"""

import hashlib
import socket
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

import httpx

from ops.patience import Patience
from ops.submission import Order, batch_key
from ops.trying import NotGivenError, PortalError, Trying

CHUNK = 1 << 18  # bytes read and sent at a time
# A slow disk under PostgreSQL may take seconds to commit; the portal itself gives up after 10 s.
ANSWER_SECONDS = 30.0
CONNECT_SECONDS = 5.0
LOOPBACK_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})


@dataclass(frozen=True, slots=True)
class Accepted:
    """A job as the portal answered.

    `replayed`: its key had been decided before this request was first sent. False also when that cannot be
    known, since an earlier try of the same request may have been taken without an answer.
    """

    job: Mapping[str, Any]
    replayed: bool


def nothing(_: object) -> None:
    """Take no notice of progress."""


class Client:
    """Speaks to one portal as one team.

    `tell` hears once, for each time of trouble, what it waits for and how long.

    Raises:
        NotGivenError: URL or token is missing or cannot be right.

    """

    def __init__(
        self,
        url: str,
        token: str,
        patience: Patience | None = None,
        sleep: Callable[[float], object] | None = None,
        tell: Callable[[str], object] = nothing,
    ) -> None:
        if not _is_web(url):
            raise NotGivenError(f"{url!r} is no http:// or https:// URL: check --url or ONCOMMIT_URL")
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            raise NotGivenError(
                "a team's token is needed: give --token, ONCOMMIT_TOKEN, or a file in ONCOMMIT_TOKEN_FILE"
            )
        self.url = url.rstrip("/")
        self._trying = Trying(self.url, patience or Patience(), sleep, tell)
        self._streams: set[socket.socket] = set()
        try:
            self._http = httpx.Client(
                base_url=self.url,
                headers={"Authorization": f"Bearer {token}"},
                timeout=httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS),
                # A proxy of the environment leads to other machines, never back to this one.
                trust_env=httpx.URL(url).host not in LOOPBACK_HOSTS,
            )
        except ImportError:
            raise NotGivenError(
                "ALL_PROXY names a SOCKS proxy: unset it, or pip install 'httpx[socks]', which speaks to it"
            ) from None

    def put(self, file: Path, sent: Callable[[int], None] = nothing) -> str:
        """Stream a file to the portal and return its digest; `sent` hears the bytes of each piece.

        Raises:
            PortalError: it was not taken.
            OSError: the file cannot be read.

        """
        answer, digest = self._trying.until_answered(lambda: self._put(file, sent))
        stored = str(answer.json()["document"])
        if stored != digest:
            raise PortalError(f"{file}: the portal stored other bytes than were sent: submit it again")
        return stored

    def _put(self, file: Path, sent: Callable[[int], None]) -> tuple[httpx.Response, str]:
        seen = hashlib.sha256()
        size = 0

        def pieces() -> Iterator[bytes]:
            nonlocal size
            while piece := source.read(CHUNK):
                yield piece
                seen.update(piece)
                size += len(piece)
                sent(len(piece))

        with file.open("rb") as source:
            try:
                answer = self._http.put(
                    "/v1/documents", content=pieces(), headers={"Content-Type": "application/octet-stream"}
                )
            except httpx.HTTPError:
                sent(-size)  # what an interrupted try had sent will be sent again
                raise
        if not answer.is_success:
            sent(-size)
        return answer, f"sha256:{seen.hexdigest()}"

    def post(self, order: Order, run_id: str) -> Accepted:
        """Ask for a job; return it as accepted, now or by an earlier request with this key.

        Raises:
            PortalError: it was not accepted.

        """
        return self._post("/v1/jobs", order.body(), order.key(run_id))

    def post_batch(self, orders: Sequence[Order], run_id: str) -> Accepted:
        """Ask for all of these jobs or none; return the batch as `post` does a job."""
        return self._post("/v1/batches", {"jobs": [o.body() for o in orders]}, batch_key(orders, run_id))

    def _post(self, path: str, body: Mapping[str, object], key: str) -> Accepted:
        headers = {"Idempotency-Key": key}
        unsure = False  # an earlier try of this very request may have been taken

        def send() -> tuple[httpx.Response, bool]:
            nonlocal unsure
            before, unsure = unsure, True
            try:
                answer = self._http.post(path, json=body, headers=headers)
            except (httpx.ConnectError, httpx.ConnectTimeout):  # it never got there
                unsure = before
                raise
            if not answer.is_server_error:
                unsure = before
            return answer, before

        answer, tried = self._trying.until_answered(send)
        return Accepted(answer.json(), answer.headers.get("idempotent-replayed") == "true" and not tried)

    def job(self, job_id: str) -> Mapping[str, Any]:
        """Return a job as it is now; raises as `get` does."""
        return self.get(f"/v1/jobs/{job_id}")

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Mapping[str, Any]:
        """Return what is at a path of the portal.

        Raises:
            PortalError: it cannot be had.

        """
        answer, _ = self._trying.until_answered(lambda: (self._http.get(path, params=query), None))
        return cast("Mapping[str, Any]", answer.json())

    @contextmanager
    def stream(self, path: str, *, last: str, silent_seconds: float) -> Generator[Iterator[str], None, None]:
        """Open an event stream after the event `last`; give its lines, none where there is no stream now.

        Raises:
            httpx.HTTPError: the connection broke or was given up, or nothing came for `silent_seconds`.

        """
        headers = {"Accept": "text/event-stream", "Last-Event-ID": last}
        waits = httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS, read=silent_seconds)
        with self._http.stream("GET", path, headers=headers, timeout=waits) as answer:
            wire = answer.extensions["network_stream"].get_extra_info("socket")
            self._streams.add(wire)
            try:
                lines = answer.is_success and not self._trying.given_up
                yield answer.iter_lines() if lines else iter(())
            finally:
                self._streams.discard(wire)

    def wait(self, seconds: float) -> None:
        """Wait as between two tries: not at all once given up."""
        self._trying.wait(seconds)

    def preview(self, job_id: str, target: Path) -> None:
        """Fetch a job's preview into the file `target`, which appears whole or not at all.

        Raises:
            PortalError: it cannot be had.
            OSError: the file cannot be written.

        """
        path = f"/v1/jobs/{job_id}/preview"
        answer, _ = self._trying.until_answered(lambda: (self._http.get(path), None))
        draft = target.with_name(f"{target.name}.part")
        draft.write_bytes(answer.content)
        draft.replace(target)

    def give_up(self) -> None:
        """Try nothing again from now on, and end the streams: whoever waits, in any thread, waits no more."""
        self._trying.give_up()
        for wire in tuple(self._streams):
            with suppress(OSError):  # it has ended by itself
                wire.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads, which closing would not

    @property
    def given_up(self) -> bool:
        """Whether nothing is tried again."""
        return self._trying.given_up

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _is_web(url: str) -> bool:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        return False
    return parsed.scheme in {"http", "https"} and bool(parsed.host)
