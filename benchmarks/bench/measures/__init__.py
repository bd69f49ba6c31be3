"""The measures, in the order of the page."""

from collections.abc import Sequence

from benchmarks.bench.contest import Measure
from benchmarks.bench.measures import (
    accept,
    actor,
    batches,
    catch_up,
    claim_latency,
    redis_latency,
    whole_job,
)

MEASURES: Sequence[Measure] = [
    measure
    for module in (catch_up, redis_latency, claim_latency, actor, whole_job, accept, batches)
    for measure in module.MEASURES
]
