"""Migrations: safe when several start at once, refused when an applied file was changed."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from db import migrate as migrations
from db.migrate import MigrationError, migrate


@pytest.fixture
def empty_databases(server: Any) -> Any:
    """Names of four empty databases of one cluster."""
    names = [f"migrate_race_{i}" for i in range(4)]
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        for name in names:
            conn.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'.encode())
            conn.execute(f'CREATE DATABASE "{name}" TEMPLATE template0'.encode())
        yield names
        for name in names:
            conn.execute(f'DROP DATABASE "{name}" WITH (FORCE)'.encode())


def test_many_installers_at_once_apply_each_step_once(server: Any, empty_databases: list[str]) -> None:
    with ThreadPoolExecutor(12) as threads:
        applied = list(threads.map(lambda n: migrate(server.dsn(n)), empty_databases * 3))
    by_database: dict[str, list[str]] = {}
    for name, steps in zip(empty_databases * 3, applied, strict=True):
        by_database.setdefault(name, []).extend(steps)
    numbered = [file.name for file in (Path(migrations.__file__).parent / "migrations").glob("0*.sql")]
    assert len(numbered) >= 3
    expected = sorted([*numbered, migrations.FUNCTIONS, migrations.PUBLICATION])
    assert all(sorted(steps) == expected for steps in by_database.values()), by_database


def test_a_changed_file_is_refused_with_what_to_do(database: Any) -> None:
    database.admin.execute("UPDATE schema_migrations SET checksum = 'other' WHERE name = '0001_tables.sql'")
    with pytest.raises(MigrationError, match="next numbered migration"):
        migrate(database.dsn())


def test_changed_functions_are_applied_again(database: Any) -> None:
    database.admin.execute("UPDATE schema_migrations SET checksum = 'other' WHERE name = 'functions'")
    assert migrate(database.dsn()) == [migrations.FUNCTIONS]


def test_a_missing_publication_is_made_again(database: Any) -> None:
    database.admin.execute("DROP PUBLICATION oncommit_outbox")
    assert migrate(database.dsn()) == [migrations.PUBLICATION]
    assert migrate(database.dsn()) == []


@pytest.mark.parametrize("name", ["mine", "9lives"])
def test_a_publication_may_have_another_name(database: Any, name: str) -> None:
    assert migrate(database.dsn(), name) == [migrations.PUBLICATION]
    assert migrate(database.dsn(), name) == []
    assert migrate(database.dsn()) == [], "the other one stays"


@pytest.mark.parametrize(
    "narrowed",
    [
        "ALTER PUBLICATION oncommit_outbox SET (publish = 'update')",
        "ALTER PUBLICATION oncommit_outbox SET TABLE outbox WHERE (priority < 5), control",
        "ALTER PUBLICATION oncommit_outbox SET TABLE outbox (id, message_id), control",
    ],
)
def test_a_publication_that_does_not_pass_all_is_made_again(database: Any, narrowed: str) -> None:
    database.admin.execute(narrowed)
    assert migrate(database.dsn()) == [migrations.PUBLICATION]
    assert migrate(database.dsn()) == []
