"""A token that was taken away, over two portals at once: refused by both within two seconds."""

import datetime as dt
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Self

import httpx
import pytest

from runtime.settings import PREFIX
from support.team import Client, House, token_for
from support.waiting import eventually

ROOT = Path(__file__).parents[2]
IN_FORCE_SECONDS = 2.0


@pytest.fixture(scope="module")
def portals(house: House) -> tuple[str, str]:
    """Two portal processes over one database."""
    return house.portal.url, house.processes.portal().url


class Asking:
    """Asks every portal all the time with one token; it is never long unheard of, so always believed."""

    def __init__(self, urls: tuple[str, ...], token: str) -> None:
        self.answers: dict[str, list[tuple[float, float, int]]] = {url: [] for url in urls}
        self._token = token
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(url,)) for url in urls]

    def _ask(self, url: str) -> None:
        headers = {"Authorization": f"Bearer {self._token}"}
        with httpx.Client(headers=headers, trust_env=False, timeout=20) as http:
            while not self._over.wait(0.05):
                asked = time.monotonic()
                status = http.get(f"{url}/v1/jobs?limit=1").status_code
                self.answers[url].append((asked, time.monotonic(), status))

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(30)

    def heard(self, after: float) -> bool:
        """Tell whether every portal has answered something that was asked after `after`."""
        return all(any(asked > after for asked, _, _ in told) for told in list(self.answers.values()))


def _refused_in_time(asking: Asking, earliest: float, latest: float) -> None:
    """Check that each portal believed until `earliest`, and nothing asked 2 s after `latest`."""
    for url, told in asking.answers.items():
        assert {status for _, _, status in told} == {200, 401}, (url, told)
        assert all(status == 200 for _, answered, status in told if answered < earliest)
        late = [status for asked, _, status in told if asked > latest + IN_FORCE_SECONDS]
        assert late
        assert set(late) == {401}, (url, told)


def _wait_heard(asking: Asking, after: float) -> None:
    eventually(lambda: asking.heard(after), describe="both portals have answered what was asked later")


def _oncommit(house: House, *arguments: str) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    variables = {"PYTHONPATH": str(ROOT), "ONCOMMIT_DATABASE_URL": house.database.url("operator")}
    done = subprocess.run(
        [sys.executable, "-m", "ops.cli", *arguments],
        env=clean | variables, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_oncommit_tokens_revoke_is_in_force_on_both_portals_within_two_seconds(
    house: House, portals: tuple[str, str]
) -> None:
    token, found = token_for(house.database, "revoked", "read")
    other, _ = token_for(house.database, "revoked", "read")
    with Asking(portals, token) as asking:
        _wait_heard(asking, 0.0)
        earliest = time.monotonic()
        _oncommit(house, "tokens", "revoke", str(found), "--reason", "a test", "--who", "tests")
        latest = time.monotonic()
        _wait_heard(asking, latest + IN_FORCE_SECONDS)
    _refused_in_time(asking, earliest, latest)
    for url in portals:
        client = Client(house.database, url, "revoked", other)
        assert client.http.get("/v1/jobs").status_code == 200, "the team's other token stays"
        client.http.close()


def test_expiry_is_in_force_on_both_portals_within_two_seconds(
    house: House, portals: tuple[str, str]
) -> None:
    soon = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=2)
    expires = time.monotonic() + 2
    token, _ = token_for(house.database, "expiring", "read", expires_at=soon.isoformat())
    with Asking(portals, token) as asking:
        _wait_heard(asking, 0.0)
        _wait_heard(asking, expires + IN_FORCE_SECONDS)
    _refused_in_time(asking, expires - 0.2, expires)
