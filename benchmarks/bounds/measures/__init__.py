"""The measures: each a scenario on a fresh world that returns its bounds' values, by their keys."""

from collections.abc import Callable, Mapping

from benchmarks.bounds.measures import redis, relay, workers
from benchmarks.bounds.stage import Measured, Stage

#: By name, as `--only` takes it, those that take longest last: the page is written as they go.
MEASURES: Mapping[str, Callable[[Stage], Measured]] = {
    found.__name__.replace("_", "-"): found
    for found in (
        redis.loss,
        relay.slot_lost,
        relay.takeover,
        relay.polling,
        relay.poison,
        workers.worker_stopped,
        workers.worker_killed,
        workers.idle_latency,
        relay.idle_wal,
        workers.redis_frozen,
        workers.postgres_away,
        redis.redis_down,
        redis.frozen_wal,
        redis.paused_wal,
        redis.hundred_thousand,
        relay.million,
        relay.million_pgoutput,
    )
}
