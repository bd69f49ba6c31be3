"""One portal for the tests of a module, with new teams for each test; it has no Redis to speak to."""

import secrets
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from psycopg import sql

from ops.guardian import Guardian
from support.postgres import CREATE_FROM_TEMPLATE, DROP, TEMPLATE, Database, Server
from support.processes import Processes
from support.team import Client, House

#: Port 1 of loopback: nothing listens there, and the portal must not mind.
NO_REDIS: Any = SimpleNamespace(url="redis://127.0.0.1:1/0")


@pytest.fixture(scope="module")
def house(
    session_server: Server, guardian: Guardian, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[House]:
    """A portal shared by the tests of a module: they may not stop it, nor its server."""
    session_server.start()
    name = f"t_{secrets.token_hex(6)}"
    with session_server.connect() as conn:
        conn.execute(CREATE_FROM_TEMPLATE.format(sql.Identifier(name), sql.Identifier(TEMPLATE)))
    admin = session_server.connect(name)
    database = Database(session_server, name, admin, f"slot_{name}")
    folder: Path = tmp_path_factory.mktemp("house")
    processes = Processes(folder, guardian, database, cast("Any", NO_REDIS))
    try:
        yield House(database, processes.portal(), processes)
    finally:
        processes.close()
        admin.close()
        with session_server.connect() as conn:
            conn.execute(DROP.format(sql.Identifier(name)))


@pytest.fixture
def client(house: House) -> Iterator[Client]:
    """The client of a new team."""
    found = house.client()
    yield found
    found.http.close()


@pytest.fixture
def other(house: House) -> Iterator[Client]:
    """The client of another new team."""
    found = house.client()
    yield found
    found.http.close()
