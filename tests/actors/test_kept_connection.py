"""One kept connection: made again after it was lost, and what its transactions read."""

from typing import Any

import pytest

from actors.kept_connection import KeptConnection
from db.errors import Unavailable


def test_a_kept_connection_is_made_again_and_says_when_it_cannot(database: Any) -> None:
    kept = KeptConnection(database.dsn("worker"), "test")
    with kept.connection() as first:
        pass
    with kept.connection() as second:
        assert second is first
    kept.close()
    with kept.connection() as third:
        assert third is not first
    kept.close()
    nobody = KeptConnection("host=127.0.0.1 port=1 dbname=x", "test")
    with pytest.raises(Unavailable), nobody.connection():
        pytest.fail("there is no server")


def test_a_transaction_reads_what_is_committed_whatever_the_sessions_default_is(database: Any) -> None:
    # As behind a pooler, which leaves the session's options out.
    default = " options='-c default_transaction_isolation=serializable'"
    kept = KeptConnection(database.dsn("worker") + default, "test")
    with kept.connection() as conn, conn.transaction():
        assert conn.execute("SHOW transaction_isolation").fetchone() == ("read committed",)
    kept.close()
