"""The portal's loop: uvloop's where it is installed, and asyncio's own where it is not."""

import sys

import psutil
import pytest

from ops.ports import free_port
from support.postgres import Database
from support.processes import Processes, Running
from support.team import Client, token_for

#: As on a platform that has no uvloop.
WITHOUT = """
import sys
sys.modules["uvloop"] = None
from portal.__main__ import main
sys.exit(main())
"""


def has_uvloop(portal: Running) -> bool:
    return any("uvloop" in each.path for each in psutil.Process(portal.pid).memory_maps())


@pytest.mark.parametrize(("arguments", "uvloop"), [(["-m", "portal"], True), (["-c", WITHOUT], False)])
def test_jobs_are_taken_on_either(
    database: Database, processes: Processes, arguments: list[str], uvloop: bool
) -> None:
    settings = processes.environment("portal", {"ONCOMMIT_PORT": str(free_port())})
    portal = processes.start("portal", [sys.executable, *arguments], settings).wait_ready()
    client = Client(database, portal.url, "blue", token_for(database, "blue")[0])
    assert client.job()["status"] == "queued"
    client.http.close()
    assert has_uvloop(portal) is uvloop
    assert portal.stop() == 0
