"""A client of the portal: puts documents, asks for jobs, follows them, fetches previews.

Everything it sends may be repeated: it repeats what a passing fault has stopped, as long as its patience
lasts. Several threads may use one client.
"""

import hashlib
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import Any, Self, TypeVar, cast

import httpx

from ops.patience import Patience, pause
from ops.submission import Order, batch_key

T = TypeVar("T")

CHUNK = 1 << 18  # bytes read and sent at a time
# A slow disk under PostgreSQL may take seconds to commit; the portal itself gives up after 10 s.
ANSWER_SECONDS = 30.0
CONNECT_SECONDS = 5.0
LOOPBACK_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})
REFUSED_TOKEN = frozenset({401, 403})


class PortalError(RuntimeError):
    """The portal did not do what it was asked; the message says what to do.

    `hopeless` tells whether every other request would fare the same: no portal, a token it does not take.
    """

    def __init__(self, message: str, *, hopeless: bool = False) -> None:
        super().__init__(message)
        self.hopeless = hopeless


@dataclass(frozen=True, slots=True)
class Accepted:
    """A job as the portal answered, and whether its key had been decided before."""

    job: Mapping[str, Any]
    replayed: bool


def nothing(_: int) -> None:
    """Take no notice of progress."""


class Client:
    """Speaks to one portal as one team.

    Raises:
        PortalError: URL or token cannot be right.

    """

    def __init__(
        self,
        url: str,
        token: str,
        patience: Patience | None = None,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        if not _is_web(url):
            raise PortalError(
                f"{url!r} is no http:// or https:// URL: check --url or ONCOMMIT_URL", hopeless=True
            )
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            raise PortalError("a team's token is needed: give --token or ONCOMMIT_TOKEN", hopeless=True)
        self.url = url.rstrip("/")
        self._patience = patience or Patience()
        self._given_up = Event()
        self._sleep = sleep or self._given_up.wait
        self._http = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS),
            # A proxy of the environment leads to other machines, never back to this one.
            trust_env=httpx.URL(url).host not in LOOPBACK_HOSTS,
        )

    def put(self, file: Path, sent: Callable[[int], None] = nothing) -> str:
        """Stream a file to the portal and return its digest; `sent` hears the bytes of each piece.

        Raises:
            PortalError: it was not taken.
            OSError: the file cannot be read.

        """
        answer, digest = self._until_answered(lambda: self._put(file, sent))
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
        answer, _ = self._until_answered(lambda: (self._http.post(path, json=body, headers=headers), None))
        return Accepted(answer.json(), answer.headers.get("idempotent-replayed") == "true")

    def job(self, job_id: str) -> Mapping[str, Any]:
        """Return a job as it is now; raises as `get` does."""
        return self.get(f"/v1/jobs/{job_id}")

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Mapping[str, Any]:
        """Return what is at a path of the portal.

        Raises:
            PortalError: it cannot be had.

        """
        answer, _ = self._until_answered(lambda: (self._http.get(path, params=query), None))
        return cast("Mapping[str, Any]", answer.json())

    @contextmanager
    def stream(self, path: str, *, last: str, silent_seconds: float) -> Generator[Iterator[str], None, None]:
        """Open an event stream after the event `last`; give its lines, none where there is no stream now.

        Raises:
            httpx.HTTPError: the connection broke, or nothing came for `silent_seconds`.

        """
        headers = {"Accept": "text/event-stream", "Last-Event-ID": last}
        waits = httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS, read=silent_seconds)
        with self._http.stream("GET", path, headers=headers, timeout=waits) as answer:
            yield answer.iter_lines() if answer.is_success else iter(())

    def wait(self, seconds: float) -> None:
        """Wait as between two tries: not at all once given up."""
        self._sleep(seconds)

    def preview(self, job_id: str, target: Path) -> None:
        """Fetch a job's preview into the file `target`, which appears whole or not at all.

        Raises:
            PortalError: it cannot be had.
            OSError: the file cannot be written.

        """
        answer, _ = self._until_answered(lambda: (self._http.get(f"/v1/jobs/{job_id}/preview"), None))
        draft = target.with_name(f"{target.name}.part")
        draft.write_bytes(answer.content)
        draft.replace(target)

    def _until_answered(self, send: Callable[[], tuple[httpx.Response, T]]) -> tuple[httpx.Response, T]:
        """Send, and send again while the fault is a passing one and the patience lasts."""
        deadline = time.monotonic() + self._patience.seconds
        tries = 0
        while True:
            tries += 1
            status, headers, problem = None, httpx.Headers(), PortalError("")
            try:
                answer, value = send()
            except httpx.HTTPError as error:
                problem = self._absent(error)
            else:
                if answer.is_success:
                    return answer, value
                status, headers, problem = answer.status_code, answer.headers, refusal(answer)
            wait = pause(status, headers, tries, datetime.now(UTC))
            if wait is None or time.monotonic() + wait > deadline or self._given_up.is_set():
                raise problem
            self._sleep(wait)

    def _absent(self, error: httpx.HTTPError) -> PortalError:
        why = str(error) or type(error).__name__
        return PortalError(
            f"no portal answers at {self.url} ({why}): check --url or ONCOMMIT_URL, and that it runs",
            hopeless=True,
        )

    def give_up(self) -> None:
        """Try nothing again from now on: whoever waits for another try, in any thread, stops waiting."""
        self._given_up.set()

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


def refusal(answer: httpx.Response) -> PortalError:
    """Return what the portal's refusal says: the title and detail of its problem document (RFC 9457)."""
    try:
        problem = answer.json()
    except ValueError:  # not the portal but something on the way
        problem = None
    told = f"{answer.status_code} {answer.reason_phrase}"
    if isinstance(problem, dict):
        found = cast("dict[str, Any]", problem)
        told = f"{answer.status_code} {found.get('title', answer.reason_phrase)}: {found.get('detail', '')}"
        told += "".join(f" {e.get('pointer', '')} {e.get('detail', '')}." for e in found.get("errors", []))
    if answer.status_code in REFUSED_TOKEN:
        told += " Check --token or ONCOMMIT_TOKEN."
    return PortalError(told.strip(), hopeless=answer.status_code in REFUSED_TOKEN)
