"""The built wheel, installed into a new environment in another folder, serves, relays and works."""

import os
import secrets
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from email import message_from_bytes
from pathlib import Path

import pytest
from psycopg import sql

from ops.guardian import Guardian
from ops.ports import free_port
from support.kinds import kinds
from support.postgres import Database, Server, drop_slots
from support.processes import Processes
from support.team import Client, token_for
from support.valkey import Valkey
from support.waiting import eventually

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DIST_INFO = f"oncommit-{PROJECT['version']}.dist-info"
ABOUT = ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")
PNG = b"\x89PNG\r\n\x1a\n"
# It is the package that is tried, not the servers.
ONE_SERVER = pytest.mark.parametrize("session_server", kinds()[0][-1:], indirect=True)
# Building and installing fetches packages, unless uv has them in its cache.
pytestmark = pytest.mark.timeout(600)


def uv(*arguments: str | Path, cwd: Path) -> None:
    program = Path(sys.executable).with_name("uv")
    done = subprocess.run([program, *arguments], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this source tree."""
    folder = tmp_path_factory.mktemp("dist")
    uv("build", "--quiet", "--wheel", "--out-dir", folder, ROOT, cwd=folder)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of a new environment with the wheel and what it asks for, without extras."""
    folder = tmp_path_factory.mktemp("elsewhere")
    uv("venv", "--quiet", "--python", sys.executable, "venv", cwd=folder)
    uv("pip", "install", "--quiet", "--python", "venv/bin/python", wheel, cwd=folder)
    return folder / "venv" / "bin"


@pytest.fixture
def empty(server: Server) -> Iterator[Database]:
    """A database without anything in it."""
    name = f"t_{secrets.token_hex(6)}"
    with server.connect() as conn:
        conn.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(name)))
    admin = server.connect(name)
    yield Database(server, name, admin, f"slot_{name}")
    admin.close()
    with server.connect() as conn:
        drop_slots(conn, name)
        conn.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def run(installed: Path, *argv: str, env: Mapping[str, str] | None = None) -> str:
    """Run a program of the new environment, in its folder, without a trace of the source tree."""
    clean = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **(env or {})}
    done = subprocess.run(
        [installed / argv[0], *argv[1:]],
        cwd=installed.parents[1], env=clean, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_all_packages_with_sql_and_lua_and_nothing_else(wheel: Path) -> None:
    packages = ("portal", "ops", "relay", "actors", "broker", "db", "runtime")
    # What lies in the tree and is not ignored, committed or not yet.
    tree = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *packages]
    listed = subprocess.run(tree, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert {Path(name).suffix for name in listed} == {".py", ".sql", ".lua", ".typed"}
    wanted = set(listed)
    assert {"broker/lanes.lua", "db/functions/10_intent.sql", "db/migrations/0001_tables.sql"} <= wanted
    samples = {f"ops/samples/{path.name}" for path in (ROOT / "compose" / "samples").iterdir()}
    about = {f"{DIST_INFO}/{name}" for name in ABOUT}
    names = zipfile.ZipFile(wheel).namelist()
    assert sorted(names) == sorted(wanted | samples | about)  # sorted: a name that is there twice is seen


def test_the_wheel_carries_its_license_and_cannot_be_uploaded_by_mistake(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as held:
        license_text = held.read(f"{DIST_INFO}/licenses/LICENSE")
        told = message_from_bytes(held.read(f"{DIST_INFO}/METADATA"))
    assert license_text == (ROOT / "LICENSE").read_bytes()
    assert (told["License-Expression"], told.get_all("License-File")) == (PROJECT["license"], ["LICENSE"])
    # The public index refuses whatever has a classifier of this kind.
    assert "Private :: Do Not Upload" in told.get_all("Classifier", [])
    assert set(told.get_all("Provides-Extra", [])) == set(PROJECT["optional-dependencies"])


@ONE_SERVER
def test_an_installed_wheel_migrates_serves_relays_and_works(
    installed: Path, empty: Database, valkey: Valkey, guardian: Guardian, tmp_path: Path
) -> None:
    python = str(installed / "python")
    places = run(
        installed,
        "python",
        "-c",
        "import db, broker, portal; print(db.__file__, broker.__file__, portal.__file__)",
    )
    assert all(str(installed.parents[1]) in place for place in places.split()), places
    assert "outbox" not in run(installed, "oncommit", "--version")
    run(installed, "oncommit", "migrate", env={"ONCOMMIT_DATABASE_URL": empty.url()})

    processes = Processes(tmp_path, guardian, empty, valkey)
    nowhere = {"PYTHONPATH": ""}  # the source tree is out of reach
    try:
        portal = processes.start(
            "portal", [python, "-m", "portal"],
            processes.environment("portal", {"ONCOMMIT_PORT": str(free_port()), **nowhere}),
        )  # fmt: skip
        parts = [portal]
        for name, argv in {
            "relay": [python, "-m", "relay"],
            "worker": [str(installed / "dramatiq"), "actors:setup", "-p", "1", "-t", "2"],
        }.items():
            health = {"ONCOMMIT_HEALTH_FILE": str(tmp_path / f"{name}.url"), **nowhere}
            parts.append(processes.start(name, argv, processes.environment(name, health)))
        for part in parts:
            part.wait_ready()
        client = Client(empty, portal.url, "red", token_for(empty, "red")[0])
        answer = client.post({"document": client.put(b"# Hello\n"), "kind": "thumbnail"})
        assert answer.status_code == 202, answer.text
        place = answer.headers["Location"]
        eventually(lambda: client.http.get(place).json()["status"] == "succeeded", timeout=60)
        preview = client.http.get(f"{place}/preview", follow_redirects=True)
        assert preview.content.startswith(PNG)
        told = run(
            installed, "oncommit", "dispatch", "probe", "--count", "3",
            env={"ONCOMMIT_DATABASE_URL": empty.url("operator"), "ONCOMMIT_REDIS_URL": valkey.url,
                 "ONCOMMIT_SLOT": empty.slot},
        )  # fmt: skip
        assert "finished\t3" in told
    finally:
        processes.close()


def test_an_environment_without_the_extras_says_what_to_install(installed: Path) -> None:
    code = (
        "from runtime import tracing\ntry:\n tracing.configure('x', 'otlp')\nexcept ValueError as e: print(e)"
    )
    assert "oncommit[tracing]" in run(installed, "python", "-c", code)
