"""What the tests of the workers share."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.bench import Bench, Pump
from support.processes import Processes
from support.valkey import Valkey


@pytest.fixture
def bench(database: Any, tmp_path: Path) -> Bench:
    """A database with a team `acme` that has no limits, and a blob store."""
    found = Bench(database.admin, tmp_path / "blobs")
    found.team()
    return found


@pytest.fixture
def pump(database: Any, valkey: Valkey) -> Iterator[Pump]:
    """Publish what is committed, until the test ends."""
    found = Pump(database.dsn(), valkey.url)
    yield found
    found.close()


@pytest.fixture
def whole(processes: Processes, bench: Bench, pump: Pump) -> Processes:
    """Everything that a worker needs: `whole.worker()` starts one."""
    del pump
    assert bench.blobs.root == processes.blobs
    return processes
