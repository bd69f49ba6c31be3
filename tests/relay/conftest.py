"""Fixtures of the reading half: a slot of the test's own, read with each plugin that the server has."""

from collections.abc import Iterator
from contextlib import suppress

import psycopg
import pytest

from relay import slot
from relay.events import PluginName
from support.postgres import Database
from support.wal import Reader


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take out what cannot be, wal2json on the embedded server: its wheel has none. pytest counts them."""

    def impossible(item: pytest.Item) -> bool:
        params = getattr(getattr(item, "callspec", None), "params", {})
        return params.get("plugin") == "wal2json" and params.get("session_server") == "embedded"

    gone = [item for item in items if impossible(item)]
    if gone:
        config.hook.pytest_deselected(items=gone)
        items[:] = [item for item in items if not impossible(item)]


@pytest.fixture(params=["wal2json", "pgoutput"])
def plugin(request: pytest.FixtureRequest) -> PluginName:
    return request.param


@pytest.fixture
def relay_conn(database: Database) -> Iterator[psycopg.Connection]:
    """Give an autocommit connection as oncommit_relay."""
    with psycopg.connect(database.dsn("relay"), autocommit=True) as conn:
        yield conn


@pytest.fixture
def unopened(database: Database, plugin: PluginName, relay_conn: psycopg.Connection) -> Iterator[Reader]:
    """Give a reader whose slot exists and whose stream is not open."""
    assert slot.ensure_slot(relay_conn, database.slot, plugin, timeout=10) == "created"
    reader = Reader(database, plugin)
    yield reader
    with suppress(AttributeError):
        reader.stream.close()


@pytest.fixture
def reader(unopened: Reader) -> Reader:
    unopened.open()
    return unopened
