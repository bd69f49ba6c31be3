"""What one portal process has: made at start, reached from every request."""

from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field

from starlette.requests import Request

from portal.bodies import Budget
from portal.database import Database
from portal.identity import Identities
from portal.joint_commit import JointCommit
from portal.limits import Backlogs, Rates, Turns
from portal.streams import Hub
from runtime.blobs import BlobStore
from runtime.settings import Settings


@dataclass(frozen=True, slots=True)
class Portal:
    """The parts of a portal process."""

    settings: Settings
    database: Database
    blobs: BlobStore
    identities: Identities
    rates: Rates
    backlogs: Backlogs
    joint: JointCommit
    streams: Hub
    budget: Budget = field(default_factory=Budget)
    turns: Turns = field(default_factory=Turns)
    #: One large body is parsed at a time, beside the loop.
    parser: Executor = field(default_factory=lambda: ThreadPoolExecutor(1, "parser"))


def portal(request: Request) -> Portal:
    """Return the process's parts."""
    found: Portal = request.app.state.portal
    return found
