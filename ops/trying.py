"""Asking a portal until it answers: what passes is tried again, as long as the patience lasts."""

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar, cast

import httpx

from ops.patience import AWAY, Patience, pause

T = TypeVar("T")

REFUSED_TOKEN = frozenset({401, 403})
# A shorter wait than that is over before it is read.
WORTH_TELLING_SECONDS = 2.0


class PortalError(RuntimeError):
    """The portal did not do what it was asked; the message says what to do.

    `hopeless` tells whether every other request would fare the same: no portal, a token it does not take.
    """

    def __init__(self, message: str, *, hopeless: bool = False) -> None:
        super().__init__(message)
        self.hopeless = hopeless


class NotGivenError(PortalError):
    """The URL or the token is missing or cannot be right: nothing was asked."""


class Trying:
    """Sends requests to the portal at `url`, and sends them again.

    `tell` hears, once for each time of trouble, what is waited for and how long; several threads may use it.
    """

    def __init__(
        self,
        url: str,
        patience: Patience,
        sleep: Callable[[float], object] | None,
        tell: Callable[[str], object],
    ) -> None:
        self._url = url
        self._patience = patience
        self._given_up = threading.Event()
        self._sleep = sleep or self._given_up.wait
        self._tell = tell
        self._told = False
        self._lock = threading.Lock()

    def until_answered(self, send: Callable[[], tuple[httpx.Response, T]]) -> tuple[httpx.Response, T]:
        """Send, and send again while the fault is a passing one and the patience lasts.

        Raises:
            PortalError: it did not pass, or the portal refuses.

        """
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
                    self._told = False
                    return answer, value
                status, headers, problem = answer.status_code, answer.headers, refusal(answer)
            wait = pause(status, headers, tries, datetime.now(UTC))
            if wait is None or time.monotonic() + wait > deadline or self._given_up.is_set():
                raise problem
            if status is None or status in AWAY or wait >= WORTH_TELLING_SECONDS:
                self._tell_once(f"{problem} Trying again for up to {deadline - time.monotonic():.0f} s.")
            self._sleep(wait)

    def _tell_once(self, sentence: str) -> None:
        with self._lock:
            told, self._told = self._told, True
        if not told:
            self._tell(sentence)

    def _absent(self, error: httpx.HTTPError) -> PortalError:
        why = str(error) or type(error).__name__
        return PortalError(
            f"no portal answers at {self._url} ({why}): check --url or ONCOMMIT_URL, and that it runs.",
            hopeless=True,
        )

    def wait(self, seconds: float) -> None:
        """Wait as between two tries: not at all once given up."""
        self._sleep(seconds)

    def give_up(self) -> None:
        """Try nothing again from now on: whoever waits for another try, in any thread, stops waiting."""
        self._given_up.set()

    @property
    def given_up(self) -> bool:
        """Whether nothing is tried again."""
        return self._given_up.is_set()


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
        told += " Check --token, ONCOMMIT_TOKEN or ONCOMMIT_TOKEN_FILE."
    return PortalError(told.strip(), hopeless=answer.status_code in REFUSED_TOKEN)
