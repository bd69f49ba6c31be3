"""`oncommit migrate --login FILE`: a role gets the password that its process connects with."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from db.cluster import BadLogin, give_logins, set_role_password
from runtime.settings import PREFIX
from support.postgres import Database

ROOT = Path(__file__).parents[2]
ROLE = "oncommit_viewer"
NEW = "n3w-p%40ss"  # in a URL: n3w-p@ss


@pytest.fixture
def kept(database: Database) -> Iterator[Database]:
    """Give the role its password back: roles belong to the whole server."""
    yield database
    set_role_password(database.dsn(), ROLE, database.server.passwords[ROLE])


def migrate(database: Database, *arguments: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    return subprocess.run(
        [sys.executable, "-m", "ops.cli", "migrate", *arguments],
        env={**clean, "PYTHONPATH": str(ROOT), "COLUMNS": "200", "ONCOMMIT_DATABASE_URL": database.dsn()},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_the_role_connects_with_the_string_in_the_file(kept: Database, tmp_path: Path) -> None:
    url = f"postgresql://{ROLE}:{NEW}@127.0.0.1:{kept.server.port}/{kept.name}"
    file = tmp_path / "viewer_url"
    file.write_text(f"{url}\n", encoding="ascii")
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)
    for _ in range(2):  # harmless to repeat
        done = migrate(kept, "--login", str(file))
        assert done.returncode == 0, done.stderr
        assert f"passwords set: {ROLE}" in done.stdout
    psycopg.connect(url).close()


@pytest.mark.parametrize(
    "login",
    [
        "postgresql://postgres:hunter2@127.0.0.1/x",
        f"postgresql://{ROLE}@127.0.0.1/x",
        "postgresql://hunter2:hunter2@[::1",
        "hunter2",
        "",
    ],
)
def test_what_is_no_login_of_a_role_changes_nothing_and_is_not_repeated(
    database: Database, login: str
) -> None:
    good = f"postgresql://{ROLE}:{NEW}@127.0.0.1/x"
    with pytest.raises(BadLogin) as caught:
        give_logins(database.dsn(), [good, login])
    assert "hunter2" not in str(caught.value)
    psycopg.connect(database.dsn("viewer")).close()  # its password is what it was


def test_a_file_that_cannot_be_read_is_a_line_and_no_traceback(database: Database, tmp_path: Path) -> None:
    done = migrate(database, "--login", str(tmp_path / "missing"))
    assert done.returncode == 2
    assert "cannot read" in done.stderr
    assert "Traceback" not in done.stderr
