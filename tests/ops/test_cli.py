"""`oncommit config | migrate | teams | tokens`, as a real command against a real database."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psycopg
import pytest

from db.cluster import set_role_password
from ops.exit_codes import USAGE
from ops.ports import free_port
from runtime.settings import PREFIX, Settings
from support.postgres import Database, Server
from support.waiting import eventually

ROOT = Path(__file__).parents[2]


def oncommit(*arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command with no ONCOMMIT_ variable but those given."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    return subprocess.run(
        [sys.executable, "-m", "ops.cli", *arguments],
        env={**clean, "PYTHONPATH": str(ROOT), "COLUMNS": "200", **(env or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def as_operator(database: Database) -> dict[str, str]:
    return {"ONCOMMIT_DATABASE_URL": database.url("operator")}


def test_config_lists_every_variable_with_a_meaning() -> None:
    rows = {row["name"]: row for row in json.loads(oncommit("config", "--json").stdout)}
    for field, info in Settings.model_fields.items():
        assert rows[f"{PREFIX}{field.upper()}"]["meaning"] == info.description
    assert all(row["meaning"] for row in rows.values())
    lines = oncommit("config").stdout.splitlines()
    assert {line.split("\t")[0] for line in lines} == set(rows)


def test_config_never_prints_a_value_that_is_set() -> None:
    env = {
        "ONCOMMIT_DATABASE_URL": "postgresql://me:hunter2@db/x",
        "ONCOMMIT_REDIS_URL": "redis://:hunter2@r",
    }
    for arguments in (["config"], ["config", "--json"]):
        done = oncommit(*arguments, env=env)
        assert done.returncode == 0
        assert "hunter2" not in done.stdout + done.stderr


def test_migrate_tells_what_it_did_and_then_that_nothing_is_left(server: Server) -> None:
    with server.connect() as conn:
        conn.execute("CREATE DATABASE t_migrate_cli TEMPLATE template0")
    try:
        env = {"ONCOMMIT_DATABASE_URL": server.dsn("t_migrate_cli")}
        first = oncommit("migrate", "--json", env=env)
        assert "0001_tables.sql" in json.loads(first.stdout)["applied"], first.stderr
        assert json.loads(oncommit("migrate", "--json", env=env).stdout) == {"applied": []}
        assert "nothing to do" in oncommit("migrate", env=env).stdout
    finally:
        with server.connect() as conn:
            conn.execute("DROP DATABASE t_migrate_cli WITH (FORCE)")


def test_a_team_is_made_once_and_audited(database: Database) -> None:
    first = oncommit("teams", "create", "red", "--who", "operator:eve", env=as_operator(database))
    again = oncommit("teams", "create", "red", "--json", env=as_operator(database))
    assert first.stdout == "team red made\n", first.stderr
    assert json.loads(again.stdout) == {"team": "red", "created": False}
    assert database.admin.execute("SELECT id FROM teams").fetchall() == [("red",)]
    acts = database.admin.execute("SELECT who, action FROM operator_actions").fetchall()
    assert acts == [("operator:eve", "create_team")]


@pytest.mark.parametrize("name", ["Red", "-red", "", "r" * 64, "rot|gelb"])
def test_a_bad_team_name_is_wrong_usage(database: Database, name: str) -> None:
    done = oncommit("teams", "create", "--", name, env=as_operator(database))
    assert done.returncode == 2
    assert "1 to 63" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_token_is_printed_once_and_only_its_hash_is_stored(database: Database) -> None:
    oncommit("teams", "create", "red", env=as_operator(database))
    done = oncommit("tokens", "create", "--team", "red", env=as_operator(database))
    assert done.returncode == 0, done.stderr
    token = done.stdout.strip()
    assert token.startswith("oc_")
    assert len(token) == 3 + 43
    assert token not in done.stderr
    stored = database.admin.execute("SELECT team, hash, scopes, expires_at FROM tokens").fetchall()
    assert stored == [("red", hashlib.sha256(token.encode()).digest(), ["submit", "read"], None)]
    everything = database.admin.execute("SELECT row_to_json(t)::text FROM operator_actions t").fetchall()
    assert not any(token in text for (text,) in everything)
    log = database.server.log_text()
    assert token not in log


def test_a_token_has_the_scopes_and_the_expiry_that_were_asked_for(database: Database) -> None:
    oncommit("teams", "create", "red", env=as_operator(database))
    arguments = ["--team", "red", "--scope", "read", "--scope", "operate", "--expires-days", "30", "--json"]
    told = json.loads(oncommit("tokens", "create", *arguments, env=as_operator(database)).stdout)
    assert told["scopes"] == ["read", "operate"]
    row = database.admin.execute(
        "SELECT scopes, expires_at BETWEEN now() + '29 days' AND now() + '31 days', id::text FROM tokens"
    ).fetchone()
    assert row == (["read", "operate"], True, told["id"])


def test_a_token_for_an_unknown_team_says_how_to_make_the_team(database: Database) -> None:
    done = oncommit("tokens", "create", "--team", "blue", env=as_operator(database))
    assert done.returncode == 2
    assert "oncommit teams create blue" in done.stderr
    assert database.admin.execute("SELECT count(*) FROM tokens").fetchone() == (0,)


def test_without_a_server_there_is_one_line_and_no_traceback() -> None:
    env = {"ONCOMMIT_DATABASE_URL": f"postgresql://me:hunter2@127.0.0.1:{free_port()}/x"}
    for arguments in (["migrate"], ["teams", "create", "red"], ["tokens", "create", "--team", "red"]):
        done = oncommit(*arguments, env=env)
        assert done.returncode == 1
        assert "ONCOMMIT_DATABASE_URL" in done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert "hunter2" not in done.stderr


def test_a_wrong_variable_is_named_and_its_value_is_not_shown() -> None:
    done = oncommit("migrate", env={"ONCOMMIT_PORT": "seventy", "ONCOMMIT_DATABASE_URL": "postgresql://h/x"})
    assert done.returncode == USAGE
    assert "ONCOMMIT_PORT" in done.stderr
    assert "seventy" not in done.stderr


def test_an_unmigrated_database_says_to_migrate(server: Server) -> None:
    done = oncommit("teams", "create", "red", env={"ONCOMMIT_DATABASE_URL": server.dsn()})
    assert done.returncode == 1
    assert "oncommit migrate" in done.stderr


def test_the_viewer_may_not_make_tokens(database: Database) -> None:
    done = oncommit(
        "tokens", "create", "--team", "red", env={"ONCOMMIT_DATABASE_URL": database.url("viewer")}
    )
    assert done.returncode == 1
    assert "InsufficientPrivilege" in done.stderr


def _shown(server: Server, setting: str) -> str:
    with server.connect() as conn:
        row = conn.execute("SELECT current_setting(%s)", [setting]).fetchone()
    assert row is not None
    return str(row[0])


def test_a_password_of_a_role_does_not_reach_the_servers_log(server: Server) -> None:
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        conn.execute("ALTER SYSTEM SET log_statement = 'all'")
        conn.execute("SELECT pg_reload_conf()")
    try:
        eventually(lambda: _shown(server, "log_statement") == "all")
        secret = server.passwords["oncommit_viewer"]
        set_role_password(server.dsn(), "oncommit_viewer", secret)
        assert secret not in server.log_text()
        psycopg.connect(server.dsn("postgres", "oncommit_viewer")).close()
    finally:
        with psycopg.connect(server.dsn(), autocommit=True) as conn:
            conn.execute("ALTER SYSTEM RESET log_statement")
            conn.execute("SELECT pg_reload_conf()")
        eventually(lambda: _shown(server, "log_statement") == "none")
