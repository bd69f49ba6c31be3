"""The measures: each a scenario on a fresh world that returns its bounds' values, by their keys."""

from collections.abc import Callable, Mapping

from benchmarks.bounds.measures import redis, relay, workers
from benchmarks.bounds.stage import Measured, Stage

#: By name, as `--only` takes it, in the order of the table.
MEASURES: Mapping[str, Callable[[Stage], Measured]] = {
    found.__name__.replace("_", "-"): found
    for found in (
        redis.loss,
        redis.hundred_thousand,
        redis.redis_down,
        redis.frozen_wal,
        workers.redis_frozen,
        workers.postgres_away,
        relay.idle_wal,
        relay.slot_lost,
        relay.takeover,
        relay.polling,
        relay.poison,
        relay.million,
        relay.million_pgoutput,
        workers.worker_killed,
        workers.worker_stopped,
        workers.idle_latency,
    )
}
