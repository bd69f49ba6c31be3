"""What has to stay as it is while the database says no: renders that run, jobs that wait, a client, pids."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Self
from uuid import UUID, uuid4

from portal.database import WORK_SECONDS
from support.waiting import eventually

from .history import Entry
from .scenario import Scenario
from .world import World

#: The portal's own bound, and the time of a machine that is busy besides.
BOUND_SECONDS = WORK_SECONDS + 4
PATIENCE_SECONDS = 30.0
#: They run two at a time, and one attempt is all that they have.
JOBS = 4
BY_STATUS = "SELECT status, count(*) FROM jobs WHERE batch = %s GROUP BY status"
ENDS = "SELECT id, status, attempt, releases FROM jobs WHERE batch = %s"


def begun(scenario: Scenario, *, seconds: int = 3) -> str:
    """Ask for jobs of a team that may run two; return their batch when some are rendered and some wait.

    Each render takes `seconds`: it has to outlast what is done to the database meanwhile.
    """
    key, job = str(uuid4()), {"simulate": {"sleep_ms": seconds * 1000}, "max_attempts": 1}
    scenario.post("capped", *[job] * JOBS, batch=True, key=key)
    batch: str = scenario.answers(key)[-1]["id"]

    def found() -> dict[str, int]:
        return dict(scenario.world.admin.execute(BY_STATUS, [batch]).fetchall())

    eventually(lambda: {"processing", "queued"} <= found().keys(), describe=found)
    return batch


def rendered_once(world: World, batch: str) -> int:
    """Check that each of the jobs was rendered, once; return how many claims had to be given back."""
    rows: list[tuple[UUID, str, int, int]] = world.admin.execute(ENDS, [batch]).fetchall()
    assert [(status, attempt) for _, status, attempt, _ in rows] == [("succeeded", 1)] * JOBS
    ends = Counter(line["job"] for line in world.processes.renders() if line.get("outcome") == "rendered")
    assert [ends[str(job)] for job, *_ in rows] == [1] * JOBS
    return sum(releases for *_, releases in rows)


def pids(world: World) -> list[int]:
    """Return who runs: what ends and is started again is another."""
    return [member.running.pid for member in world.members] + [
        member.running.worker_pid for member in world.of("worker")
    ]


class Asking:
    """Asks for a job from `begin` until there is a 202, patiently; the end of the block waits for that."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._pool = ThreadPoolExecutor(1)
        self.key = str(uuid4())

    def begin(self) -> None:
        """Ask from now on."""
        self._asked = self._pool.submit(
            self._scenario.post, "free", {}, key=self.key, patience=PATIENCE_SECONDS
        )

    @property
    def answers(self) -> list[Entry]:
        """Every answer so far."""
        return self._scenario.answers(self.key)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._pool.shutdown()
        if kind is None:
            self._asked.result()
            assert {answer["status"] for answer in self.answers[:-1]} <= {503}
            assert self.answers[-1]["status"] == 202
            assert max(answer["seconds"] for answer in self.answers) < BOUND_SECONDS
