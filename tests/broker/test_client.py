"""The client of Redis takes every form of URL that is documented."""

import secrets
import shutil
import tempfile
from pathlib import Path

from broker.client import redis_client
from broker.lanes import Lanes
from ops.account import servers_account
from ops.binaries import valkey_program
from ops.guardian import Guardian
from ops.valkey import DISPOSABLE, ValkeyPlan, ValkeyServer


def test_redis_is_reached_by_a_socket_file(guardian: Guardian, servers_folder: Path) -> None:
    account, name = servers_account(), f"socket-{secrets.token_hex(4)}"
    folder = Path(tempfile.mkdtemp(prefix="oc-"))  # a socket's path has to be short
    account.give(folder)
    plan = ValkeyPlan(
        program=valkey_program(account, servers_folder / "binaries"),
        datadir=servers_folder / name,
        log=servers_folder / f"{name}.log",
        account=account,
        settings={**DISPOSABLE, "unixsocket": str(folder / "s")},
    )
    server = ValkeyServer(plan, guardian)
    try:
        server.start()
        lanes = Lanes(redis_client(f"unix://{folder}/s?db=3", timeout=2), "ns")
        assert lanes.seize(1).lost
        assert not lanes.wait("previews", 10)
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
