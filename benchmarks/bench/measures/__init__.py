"""The measures, in the order of the page."""

from collections.abc import Sequence

from benchmarks.bench.contest import Measure
from benchmarks.bench.measures import (
    accept,
    actor,
    batches,
    behind,
    catch_up,
    claim_latency,
    growth,
    redis_latency,
    refill,
    whole_job,
)

MEASURES: Sequence[Measure] = [
    measure
    for module in (
        catch_up,
        redis_latency,
        claim_latency,
        actor,
        whole_job,
        accept,
        batches,
        behind,
        refill,
        growth,
    )
    for measure in module.MEASURES
]
