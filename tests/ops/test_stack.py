"""`oncommit up`: what it starts, keeps, restarts and leaves behind. Real servers, stand-ins for the rest."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

from ops import ending, proctable
from ops.account import servers_account
from ops.binaries import Kind
from support.kinds import local_kinds
from support.postgres import Database
from support.valkey import Valkey
from support.waiting import eventually

ROOT = Path(__file__).parents[2]
STANDINS = Path(__file__).parent / "standins"
START_SECONDS = 60.0
STOP_SECONDS = 60.0


class Up:
    """A running `oncommit up --json` in a folder of its own."""

    def __init__(self, folder: Path, *arguments: str, **env: str) -> None:
        self.folder = folder
        self.home = folder / ".oncommit"
        self.said = folder / "said"
        clean = {n: v for n, v in os.environ.items() if not n.startswith("ONCOMMIT_")}
        with self.said.open("w", encoding="utf-8") as said:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    str(STANDINS / "up.py"),
                    "up",
                    "--json",
                    "--home",
                    str(self.home),
                    *arguments,
                ],
                env={**clean, "PYTHONPATH": str(ROOT), "STANDIN_LOG": str(folder / "standins"), **env},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                start_new_session=True,
            )
        self.facts: dict[str, Any] = {}
        self.guarded: list[proctable.Entry] = []

    def ready(self) -> "Up":
        """Read the facts; remember every process of the stack, the guardian included."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.words()
        self.facts = json.loads(line)
        self.guarded = proctable.family(self.process.pid)
        tag = self.tag()
        self.guarded += [e for e in proctable.tagged(tag) if e not in self.guarded]
        return self

    def tag(self) -> str:
        """The mark in the environment of everything that the stack started."""
        environ = Path(f"/proc/{self.facts['pids']['relay']}/environ").read_bytes().split(b"\0")
        return next(word.decode() for word in environ if word.startswith(b"ONCOMMIT_STACK="))

    def words(self) -> str:
        return self.said.read_text(encoding="utf-8")

    def standins(self) -> list[str]:
        """Who started and ended, in order."""
        log = self.folder / "standins"
        return [line.rsplit(" ", 1)[0] for line in log.read_text(encoding="utf-8").splitlines()]

    def left(self) -> list[proctable.Entry]:
        """Processes of the stack that still run."""
        now = proctable.everybody()
        return [e for e in self.guarded if e.pid in now and now[e.pid].started == e.started]

    def stop(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(STOP_SECONDS)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_SECONDS)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        eventually(lambda: not self.left(), timeout=STOP_SECONDS, describe="the stack is gone")
        assert self.process.stdout is not None
        self.process.stdout.close()


class Ups:
    """Starts stacks that end with the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[Up] = []

    def start(self, *arguments: str, **env: str) -> Up:
        self.started.append(Up(self.folder, *arguments, **env))
        return self.started[-1]


@pytest.fixture
def ups(servers_folder: Path, request: pytest.FixtureRequest) -> Iterator[Ups]:
    """Stacks in one folder that the servers' account can enter."""
    folder = servers_folder / f"up-{abs(hash(request.node.nodeid))}"
    folder.mkdir()
    found = Ups(folder)
    yield found
    for up in found.started:
        up.close()


def test_it_serves_and_tells_how_to_reach_it(ups: Ups) -> None:
    up = ups.start("--workers", "2", "--portals", "2").ready()
    variables = up.facts["variables"]
    assert set(up.facts["pids"]) == {
        "postgres", "valkey", "relay", "worker-1", "worker-2", "portal-1", "portal-2",
    }  # fmt: skip
    assert len(set(up.facts["portals"])) == 2
    assert redis.Redis.from_url(variables["ONCOMMIT_REDIS_URL"]).ping()
    with psycopg.connect(variables["ONCOMMIT_DATABASE_URL"]) as conn:
        assert conn.execute("SELECT current_user, id FROM operator_teams").fetchall() == [
            ("oncommit_operator", "demo")
        ]
    with psycopg.connect(up.facts["databases"]["owner"]) as conn:
        assert conn.execute("SHOW wal_level").fetchone() == ("logical",)
        assert conn.execute("SHOW fsync").fetchone() == ("on",)
        stored = conn.execute(
            "SELECT team, hash = sha256(%s::bytea) FROM tokens", [variables["ONCOMMIT_TOKEN"]]
        )
        assert stored.fetchone() == ("demo", True)
    connected = (up.folder / "standins").read_text(encoding="utf-8")
    for role in ("portal", "relay", "worker"):
        assert f"{role} start postgresql://oncommit_{role}:" in connected


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_polite_end_stops_everything_in_order(ups: Ups, number: int) -> None:
    up = ups.start().ready()
    assert len(up.guarded) > 10
    assert up.stop(number) == 0, up.words()
    assert not up.left()
    ended = [line for line in up.standins() if line.endswith(" end")]
    assert ended[-1] == "relay end"
    assert sorted(ended) == ["portal end", "relay end", "worker end"]
    postgres = (up.home / "logs" / "postgres.log").read_text(encoding="utf-8")
    assert "database system is shut down" in postgres


def test_sigkill_of_the_launcher_leaves_no_process(ups: Ups) -> None:
    up = ups.start().ready()
    tag = up.tag()
    assert len(proctable.tagged(tag)) > 5
    up.process.kill()
    up.process.wait()
    eventually(lambda: not up.left(), timeout=STOP_SECONDS, describe=up.left)
    assert not proctable.tagged(tag)
    # In order too: PostgreSQL was shut down, not killed.
    assert "database system is shut down" in (up.home / "logs" / "postgres.log").read_text(encoding="utf-8")


def test_sigkill_of_launcher_and_frozen_processes_leaves_no_process(ups: Ups) -> None:
    up = ups.start().ready()
    for name in ("portal-1", "worker-1", "valkey"):
        os.kill(up.facts["pids"][name], signal.SIGSTOP)
    up.process.kill()
    up.process.wait()
    eventually(lambda: not up.left(), timeout=STOP_SECONDS, describe=up.left)


def test_a_terminal_that_closes_during_the_start_leaves_no_process(ups: Ups) -> None:
    up = ups.start()
    eventually(lambda: "PostgreSQL" in up.words(), timeout=START_SECONDS)
    up.guarded = proctable.family(up.process.pid)
    assert up.stop(signal.SIGHUP) == 0
    assert not up.left()


def test_data_team_and_token_are_kept_between_runs_and_secrets_are_private(ups: Ups) -> None:
    first = ups.start().ready()
    with psycopg.connect(first.facts["databases"]["owner"]) as conn:
        conn.execute("INSERT INTO teams (id) VALUES ('kept')")
    client = redis.Redis.from_url(first.facts["variables"]["ONCOMMIT_REDIS_URL"])
    client.set("kept", "1")
    client.close()
    first.stop()
    second = ups.start().ready()
    with psycopg.connect(second.facts["databases"]["owner"]) as conn:
        assert conn.execute("SELECT id FROM teams WHERE id = 'kept'").fetchone() is not None
        assert conn.execute("SELECT count(*) FROM tokens").fetchone() == (1,)
    assert redis.Redis.from_url(second.facts["variables"]["ONCOMMIT_REDIS_URL"]).get("kept") == b"1"
    assert second.facts["variables"]["ONCOMMIT_TOKEN"] == first.facts["variables"]["ONCOMMIT_TOKEN"]
    secrets = list((second.home / "secrets").iterdir())
    assert secrets
    assert {file.stat().st_mode & 0o777 for file in secrets} == {0o600}
    assert (second.home / "secrets").stat().st_mode & 0o777 == 0o700


def test_what_dies_is_started_again_on_its_port(ups: Ups) -> None:
    up = ups.start().ready()
    url = up.facts["variables"]["ONCOMMIT_REDIS_URL"]
    for name in ("relay", "valkey", "postgres"):
        os.kill(up.facts["pids"][name], signal.SIGKILL)
    eventually(lambda: up.standins().count("relay start") == 2, describe=up.words)

    def serves() -> bool:
        try:
            psycopg.connect(up.facts["databases"]["owner"]).close()
            return bool(redis.Redis.from_url(url).ping())
        except (psycopg.OperationalError, redis.RedisError):
            return False

    eventually(serves, describe=up.words)
    up.guarded += [e for e in proctable.family(up.process.pid) if e not in up.guarded]


def test_what_a_killed_part_left_is_ended_before_it_is_started_again(ups: Ups) -> None:
    up = ups.start("--workers", "2").ready()
    pids = up.facts["pids"]
    parts = {name: proctable.family(pids[name]) for name in ("worker-1", "portal-1", "relay")}
    spared = proctable.family(pids["worker-2"])
    for name, family in parts.items():
        assert len(family) == 3, name
        os.kill(pids[name], signal.SIGKILL)
    for who, count in (("worker", 3), ("portal", 2), ("relay", 2)):
        eventually(lambda who=who, n=count: up.standins().count(f"{who} start") == n, describe=up.words)  # type: ignore[misc]
    assert not [entry for family in parts.values() for entry in ending.running(family)]
    assert ending.running(spared) == spared
    up.guarded += [e for e in proctable.family(up.process.pid) if e not in up.guarded]


def test_a_process_that_does_not_start_is_named_with_the_end_of_its_log(ups: Ups) -> None:
    up = ups.start(STANDIN_FAILS="relay")
    assert up.process.wait(START_SECONDS) == 1
    assert "relay ended with code 1" in up.words()
    assert "relay was told to fail" in up.words()
    assert "Traceback" not in up.words()


def test_a_second_stack_in_the_folder_is_refused_and_harms_nothing(ups: Ups) -> None:
    first = ups.start().ready()
    second = ups.start()
    assert second.process.wait(START_SECONDS) == 1
    assert f"pid {first.process.pid}" in second.words()
    assert redis.Redis.from_url(first.facts["variables"]["ONCOMMIT_REDIS_URL"]).ping()
    # A session or an autovacuum worker of PostgreSQL may have ended meanwhile, of itself.
    assert set(first.facts["pids"].values()) <= {e.pid for e in first.left()}


def test_a_stack_that_was_killed_does_not_keep_the_next_one_out(ups: Ups) -> None:
    first = ups.start().ready()
    first.process.kill()
    first.process.wait()
    second = ups.start().ready()
    assert second.facts["variables"]["ONCOMMIT_TOKEN"] == first.facts["variables"]["ONCOMMIT_TOKEN"]


def test_the_servers_never_run_as_root_and_the_rest_runs_as_the_launcher(ups: Ups) -> None:
    up = ups.start().ready()
    account = servers_account()
    owner = {name: Path(f"/proc/{pid}").stat().st_uid for name, pid in up.facts["pids"].items()}
    assert owner["postgres"] == owner["valkey"] == account.uid != 0
    assert owner["portal-1"] == owner["relay"] == owner["worker-1"] == os.geteuid()


def test_data_lies_where_the_servers_account_can_go_and_is_removed_when_nothing_runs(ups: Ups) -> None:
    ups.folder.chmod(0o700)
    first = ups.start().ready()
    record = first.home / "elsewhere"
    # Only root's servers run as another account, which cannot enter; a plain user's stay in the folder.
    assert record.exists() == (os.geteuid() == 0)
    data = Path(record.read_text(encoding="utf-8").strip()) if record.exists() else first.home
    assert data == first.home or (data.name.startswith("oncommit-") and str(data) in first.words())
    assert any(data.glob("postgres-*/PG_VERSION"))
    with psycopg.connect(first.facts["databases"]["owner"]) as conn:
        conn.execute("INSERT INTO teams (id) VALUES ('kept')")
    first.stop()
    second = ups.start().ready()
    with psycopg.connect(second.facts["databases"]["owner"]) as conn:
        assert conn.execute("SELECT id FROM teams WHERE id = 'kept'").fetchone() is not None
    refused = clean(ups.folder)
    assert refused.returncode != 0
    assert f"pid {second.process.pid}" in refused.stderr
    assert "Ctrl-C" in refused.stderr
    with psycopg.connect(second.facts["databases"]["owner"]) as conn:
        assert conn.execute("SELECT id FROM teams WHERE id = 'kept'").fetchone() is not None
    second.stop()
    cleaned = clean(ups.folder)
    assert cleaned.returncode == 0, cleaned.stderr
    assert not data.exists()
    assert not first.home.exists()


def clean(folder: Path) -> subprocess.CompletedProcess[str]:
    command = ["make", "-f", str(ROOT / "Makefile"), f"PYTHON={sys.executable}", "clean"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_servers_of_the_users_own_are_used_and_not_started(
    ups: Ups, database: Database, valkey: Valkey
) -> None:
    up = ups.start(ONCOMMIT_DATABASE_URL=database.url(), ONCOMMIT_REDIS_URL=valkey.url).ready()
    assert set(up.facts["pids"]) == {"relay", "worker-1", "portal-1"}
    assert up.facts["variables"]["ONCOMMIT_REDIS_URL"] == valkey.url
    with psycopg.connect(up.facts["databases"]["portal"]) as conn:
        assert conn.execute("SELECT current_user, session_user").fetchone() == ("oncommit_portal", "postgres")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute("DELETE FROM jobs")
    relay = Path(f"/proc/{up.facts['pids']['relay']}/environ").read_bytes().split(b"\0")
    assert f"ONCOMMIT_REPLICATION_URL={database.url()}".encode() in relay


@pytest.mark.parametrize("kind", local_kinds())
def test_each_kind_of_postgres_can_be_forced_and_keeps_its_own_cluster(ups: Ups, kind: Kind) -> None:
    up = ups.start(ONCOMMIT_TEST_POSTGRES=kind).ready()
    major = up.facts["postgres"]["major"]
    assert up.facts["postgres"]["kind"] == kind
    assert (up.home / f"postgres-{major}" / "PG_VERSION").read_text(encoding="utf-8").strip() == str(major)
    with psycopg.connect(up.facts["databases"]["owner"], autocommit=True) as conn:
        plugin = "wal2json" if kind == "system" else "pgoutput"
        conn.execute("SELECT pg_create_logical_replication_slot('forced', %s)", [plugin])
        conn.execute("SELECT pg_drop_replication_slot('forced')")
