"""Acts 2 and 4, after: Redis is killed, or emptied, and every accepted job is rendered once."""

import shutil
import time
from collections.abc import Sequence
from typing import Any

from broker.client import redis_client
from ops.demo.claims import Act
from ops.demo.stage import THREADS, WORKERS, Stage, until

# While as many renders as there are threads sleep, no thread is free. They outlast the posting of the
# others, which is one request, and the look around.
BUSY_MS = 5_000
PICKED_UP_SECONDS = 20.0


def redis_dies(stage: Stage, jobs: int) -> Act:
    """Post jobs while Redis is dead, bring it back empty; each job is rendered once."""
    act = Act(f"after: {jobs} jobs are posted while Redis is dead; it comes back empty")
    with act.clock():
        stage.valkey.kill()
        answered = stage.valkey.answers()
        posted = stage.post_many("dead-redis", jobs)
        answered = answered or stage.valkey.answers()
        act.claim("Redis answers meanwhile", expected=False, measured=answered)
        act.claim("answers", expected={202: jobs}, measured=dict(posted.answers))
        act.claim("different jobs", expected=jobs, measured=len(set(posted.jobs)))
        act.claim(
            "of them unfinished while it is dead", expected=jobs, measured=stage.unfinished(posted.jobs)
        )
        shutil.rmtree(stage.valkey.plan.datadir)
        stage.valkey.start(empty=True)
        took = stage.wait_ended(posted.jobs)
        _claim_rendered(act, stage, posted.jobs)
        act.fact("to accept them", f"{posted.seconds:.2f} s")
        act.fact("from Redis back to the last preview", f"{took:.2f} s")
    return act


def everything_flushed(stage: Stage, jobs: int) -> Act:
    """Empty Redis while every thread renders and the others wait; each job is rendered once."""
    threads = WORKERS * THREADS
    act = Act(f"after: FLUSHALL with {jobs} jobs accepted and every worker thread busy")
    with act.clock():
        busy = stage.post_many("busy", threads, {"sleep_ms": BUSY_MS})
        until(lambda: stage.witness.running() == threads, PICKED_UP_SECONDS)
        rest = stage.post_batch("waiting", jobs - threads)
        ids = [*busy.jobs, *rest.jobs]
        before = stage.witness.running()
        keys = _flush(stage)
        flushed = time.monotonic()
        act.claim("threads that render before it", expected=threads, measured=before)
        act.claim("threads that render after it", expected=threads, measured=stage.witness.running())
        act.claim("jobs unfinished when it struck", expected=jobs, measured=stage.unfinished(ids))
        act.claim(
            f"answers to {threads} busy jobs and a batch of {jobs - threads}",
            expected={202: threads + 1},
            measured=dict(busy.answers + rest.answers),
        )
        act.claim("different jobs", expected=jobs, measured=len(set(ids)))
        stage.wait_ended(ids)
        _claim_rendered(act, stage, ids)
        act.fact("keys that Redis lost", str(keys))
        act.fact("from FLUSHALL to the last preview", f"{time.monotonic() - flushed:.2f} s")
    return act


def _flush(stage: Stage) -> int:
    """Empty Redis; return how many keys it had."""
    client: Any = redis_client(stage.stack.redis_url)  # redis-py's own types are partial
    try:
        keys = int(client.dbsize())
        client.flushall()
    finally:
        client.close()
    return keys


def _claim_rendered(act: Act, stage: Stage, ids: Sequence[str]) -> None:
    jobs = len(ids)
    act.claim("their status", expected={"succeeded": jobs}, measured=stage.statuses(ids))
    count = stage.witness.count(ids)
    act.claim("rendered exactly once, by the render log", expected=jobs, measured=count.once)
    act.claim("renders in all", expected=jobs, measured=count.starts)
    act.claim("intents left", expected=0, measured=stage.number("SELECT count(*) FROM outbox"))
