"""Liveness and readiness while what they look at is gone or frozen: no blip restarts a healthy process."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from support.kinds import kinds
from support.postgres import Server
from support.processes import Processes, Running
from support.waiting import eventually

#: A check that hangs answers after 0.8 s; a page that hangs with it never comes below this.
ANSWER_SECONDS = 1.0
#: Readiness may need this to notice a freeze: the driver's time-outs, on a busy machine.
NOTICE_SECONDS = 40.0
LOOKS = 8


@dataclass(frozen=True)
class Trouble:
    """What goes wrong, and who is ready all the same."""

    begin: Callable[[Processes, Server], object]
    end: Callable[[Processes, Server], object]
    ready: frozenset[str]


def relay(processes: Processes) -> Running:
    return next(running for running in processes.started if running.name == "relay")


TROUBLES = {
    "redis is killed": Trouble(
        lambda p, _: p.valkey.kill(), lambda p, _: p.valkey.start(), frozenset({"portal"})
    ),
    "redis is frozen": Trouble(
        lambda p, _: p.valkey.freeze(), lambda p, _: p.valkey.thaw(), frozenset({"portal"})
    ),
    "postgresql is stopped": Trouble(lambda _, s: s.stop(), lambda _, s: s.start(), frozenset()),
    "postgresql is frozen": Trouble(lambda _, s: s.freeze(), lambda _, s: s.thaw(), frozenset()),
    "the relay is killed": Trouble(
        lambda p, _: relay(p).kill(), lambda p, _: relay(p).restart(), frozenset({"portal", "worker"})
    ),
}


def timed(process: Running, page: str) -> tuple[int, float]:
    begun = time.monotonic()
    return process.get(page), time.monotonic() - begun


@pytest.mark.parametrize("session_server", kinds()[0][-1:], indirect=True)
@pytest.mark.parametrize("name", TROUBLES)
def test_live_all_the_time_and_ready_only_with_what_is_needed(
    name: str, processes: Processes, server: Server
) -> None:
    trouble = TROUBLES[name]
    all_three = [processes.portal(), processes.relay(), processes.worker(threads=2)]
    answering = [process for process in all_three if name != "the relay is killed" or process.name != "relay"]
    trouble.begin(processes, server)
    try:
        for process in answering:
            wanted = 200 if process.name in trouble.ready else 503
            eventually(
                lambda p=process, w=wanted: p.get("/readyz") == w,  # type: ignore[misc]
                timeout=NOTICE_SECONDS,
                describe=lambda p=process: f"{p.name}: {p.page('/readyz')}",  # type: ignore[misc]
            )
        seen: dict[tuple[str, str], list[tuple[int, float]]] = {}
        for _ in range(LOOKS):
            for process in answering:
                for page in ("/livez", "/readyz"):
                    seen.setdefault((process.name, page), []).append(timed(process, page))
    finally:
        trouble.end(processes, server)
    for (who, page), answers in seen.items():
        wanted = 200 if page == "/livez" or who in trouble.ready else 503
        assert {status for status, _ in answers} == {wanted}, (who, page, answers)
        assert min(seconds for _, seconds in answers) < ANSWER_SECONDS, (who, page, answers)
    for process in all_three:
        process.wait_ready(timeout=60)
