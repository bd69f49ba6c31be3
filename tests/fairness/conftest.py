"""A database with teams and jobs of the test's own."""

from pathlib import Path

import pytest

from support.bench import Bench
from support.postgres import Database


@pytest.fixture
def bench(database: Database, tmp_path: Path) -> Bench:
    """Return the means to make teams and commit their jobs."""
    return Bench(database.admin, tmp_path / "blobs")
