"""The whole system: portal, relay and worker, with a team's client."""

import pytest

from support.postgres import Database
from support.processes import Processes, Running
from support.team import Client, House


class System:
    """Portal, relay and worker, all ready."""

    def __init__(self, processes: Processes, database: Database) -> None:
        self.processes = processes
        self.database = database
        self.portal = processes.portal(ready=False)
        # No audit, whose series would be new ones on a machine so slow that its minute passes meanwhile.
        self.relay = processes.relay(ready=False, ONCOMMIT_AUDIT_SECONDS="3600")
        self.worker = processes.worker(threads=4, ready=False)
        for one in self.all():
            one.wait_ready()

    def all(self) -> list[Running]:
        return [self.portal, self.relay, self.worker]

    def client(self) -> Client:
        """Return the client of a new team."""
        return House(self.database, self.portal, self.processes).client()


@pytest.fixture
def system(processes: Processes, database: Database) -> System:
    return System(processes, database)
