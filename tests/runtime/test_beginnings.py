"""How a process begins with what its environment says: told in a line, without secrets, on any address."""

import json
import subprocess
import sys

import pytest

from runtime.logs import redact
from support.postgres import Database
from support.processes import Processes
from support.waiting import eventually

SECRET = "hunter2hunter2"
#: Connection strings as they are mistyped; libpq quotes what it cannot read of them.
MISTYPED = (
    f"postgres//oncommit_portal:{SECRET}@db/oncommit",
    f"postgresql://oncommit_portal:{SECRET}%zz@db/oncommit",
    f"postgresql://oncommit_portal:a@{SECRET}@db.invalid/oncommit",
)


@pytest.mark.parametrize("url", MISTYPED)
@pytest.mark.parametrize("command", ["jobs", "doctor"])
def test_a_mistyped_connection_string_is_not_told(url: str, command: str, processes: Processes) -> None:
    argv = {"jobs": ["jobs", "list"], "doctor": ["doctor"]}[command]
    done = subprocess.run(
        [sys.executable, "-m", "ops.cli", *argv],
        env=processes.environment("portal", {"ONCOMMIT_DATABASE_URL": url}),
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert SECRET not in done.stdout + done.stderr


def test_nothing_that_libpq_quotes_gets_into_a_log() -> None:
    for text in (
        f'missing "=" after "postgres//u:{SECRET}@db/x" in connection info string',
        f'invalid percent-encoded token: "{SECRET}%zz"',
        f'could not translate host name "{SECRET}@db" to address: Name or service not known',
        f"failed to resolve host '{SECRET}@db.invalid': [Errno -2] Name or service not known",
        f"connecting to postgresql://u:a@{SECRET}@db/x failed",
        f"connecting to postgresql://u:it's{SECRET}@db/x failed",
        f'connecting to postgresql://u:a"{SECRET}@b@db/x failed',
    ):
        assert SECRET not in redact(text)
    harmless = 'could not translate host name "db" to address'
    assert redact(harmless) == harmless


@pytest.mark.parametrize("host", ADDRESSES)
def test_health_pages_are_served_on_any_address(host: str, processes: Processes) -> None:
    relay = processes.relay(ready=False, ONCOMMIT_HOST=host)
    eventually(lambda: relay.get("/livez") == 200, timeout=30)


def test_a_relay_says_why_postgresql_does_not_let_it_in(processes: Processes, database: Database) -> None:
    url = database.url("relay").replace(database.server.passwords["oncommit_relay"], SECRET)
    relay = processes.relay(ready=False, ONCOMMIT_DATABASE_URL=url)
    eventually(lambda: "password authentication failed" in relay.log_text(), timeout=30)
    assert SECRET not in relay.log_text()


def test_a_redis_url_that_is_none_is_told_in_a_line_without_it(processes: Processes) -> None:
    relay = processes.relay(ready=False, ONCOMMIT_REDIS_URL=f"localhost:6379/{SECRET}")
    eventually(lambda: relay.returncode is not None, timeout=30)
    assert relay.returncode == 2
    (line,) = [json.loads(one) for one in relay.log_text().splitlines()]
    assert "ONCOMMIT_REDIS_URL" in line["reason"]
    assert SECRET not in relay.log_text()
