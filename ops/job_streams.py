"""Follow jobs to their end by their event streams, a few at a time: one request a job, not one a look."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

from ops.client import Accepted, Client
from ops.event_stream import AGAIN_SECONDS, events
from ops.following import Followed

# A portal takes 2,000 from all its clients.
STREAMS = 16
# While others wait for a stream, so that one that never ends keeps nobody from being seen.
TURN_SECONDS = 10.0
# A table that changes more often than that only flickers.
SHOW_SECONDS = 0.2


def follow(
    client: Client,
    accepted: Sequence[Accepted],
    show: Callable[[Sequence[Followed]], None],
    *,
    timeout_seconds: float,
    meanwhile: Callable[[], object] = lambda: None,
) -> list[Followed]:
    """Follow the jobs until each has ended or the time is up; return them as last seen.

    `show` and `meanwhile` are called in this thread, a few times a second. After an exception, Ctrl-C too,
    the client is given up.

    Raises:
        PortalError: the portal does not answer within the client's patience.

    """
    jobs = [Followed.of(one.job, replayed=one.replayed) for one in accepted]
    show(jobs)
    turns = _Turns(client, jobs, time.monotonic() + timeout_seconds)
    pool = ThreadPoolExecutor(STREAMS)
    try:
        running = {pool.submit(turns.run) for _ in range(min(STREAMS, turns.waiting))}
        while running:
            done, running = wait(running, SHOW_SECONDS)
            meanwhile()
            show(jobs)
            for ended in done:
                ended.result()
    except BaseException:
        client.give_up()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    return jobs


class _Turns:
    """Who is followed next. Each job is one thread's at a time, so its place in `jobs` is written by one."""

    def __init__(self, client: Client, jobs: list[Followed], deadline: float) -> None:
        self._client = client
        self._jobs = jobs
        self._deadline = deadline
        self._waiting = deque(n for n, job in enumerate(jobs) if not job.ended)

    @property
    def waiting(self) -> int:
        """How many wait for a stream."""
        return len(self._waiting)

    def run(self) -> None:
        """Follow one job after the other until none waits, the time is up, or the client was given up."""
        while time.monotonic() < self._deadline and not self._client.given_up:
            try:
                n = self._waiting.popleft()
            except IndexError:
                return
            if not self._followed(n):
                self._waiting.append(n)

    def _followed(self, n: int) -> bool:
        """Follow a job for a turn; tell whether it has ended."""
        started, left = time.monotonic(), self._deadline - time.monotonic()
        turn = min(left, TURN_SECONDS) if self._waiting else left
        path = f"/v1/jobs/{self._jobs[n].id}/events"
        for event in events(self._client, path, last=self._jobs[n].version, seconds=turn):
            self._jobs[n] = self._jobs[n].after(event)
        if not (self._jobs[n].ended or self._client.given_up) and time.monotonic() - started < turn:
            # It broke off. Here the patience ends, when the portal stays away.
            self._client.wait(min(AGAIN_SECONDS, turn))
            seen = self._client.job(self._jobs[n].id)
            if seen["version"] > self._jobs[n].version:
                self._jobs[n] = Followed.of(seen, replayed=self._jobs[n].replayed)
        return self._jobs[n].ended
