"""How a process begins with what its environment says: told in a line, without secrets, on any address."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.logs import redact
from runtime.settings import PREFIX, Settings, SettingsError, settings
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


@pytest.mark.parametrize("host", ["::", "::1", "127.0.0.1", "0.0.0.0", "localhost"])  # noqa: S104 -- what people write
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


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    settings.cache_clear()
    yield monkeypatch
    settings.cache_clear()


@pytest.mark.parametrize(
    "name", ["HEALTH_FILE", "RENDER_LOG", "REPLICATION_URL", "PORT", "TRACES", "BLOBS_FILE"]
)
def test_an_empty_variable_counts_as_not_set(name: str, fresh: pytest.MonkeyPatch) -> None:
    before = settings()
    fresh.setenv(f"{PREFIX}{name}", "")
    settings.cache_clear()
    assert settings() == before


def test_a_kubernetes_service_named_oncommit_sets_no_port(fresh: pytest.MonkeyPatch) -> None:
    fresh.setenv(f"{PREFIX}PORT", "tcp://10.96.0.17:8080")
    assert settings().port == Settings.model_fields["port"].default


def test_a_file_counts_where_its_variable_is_empty(fresh: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "url").write_text("redis://there:1/0\n")
    fresh.setenv(f"{PREFIX}REDIS_URL", "")
    fresh.setenv(f"{PREFIX}REDIS_URL_FILE", str(tmp_path / "url"))
    assert settings().redis_url.get_secret_value() == "redis://there:1/0"


@pytest.mark.parametrize("name", ["TEAM_REQUESTS_PER_SECOND", "SHUTDOWN_GRACE_SECONDS", "AUDIT_SECONDS"])
@pytest.mark.parametrize("value", ["inf", "nan"])
def test_what_is_no_number_is_refused_at_the_start(name: str, value: str, fresh: pytest.MonkeyPatch) -> None:
    fresh.setenv(f"{PREFIX}{name}", value)
    with pytest.raises(SettingsError, match=name):
        settings()


def test_a_file_that_is_no_text_is_named_and_not_shown(fresh: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "url").write_bytes(b"postgresql://x:" + SECRET.encode() + b"\xfc@h/d")
    fresh.setenv(f"{PREFIX}DATABASE_URL_FILE", str(tmp_path / "url"))
    with pytest.raises(SettingsError, match=r"DATABASE_URL_FILE: cannot read .*UTF-8") as caught:
        settings()
    assert SECRET not in str(caught.value)
