"""The measures have the floors that were promised, and every floor names contestants that come in."""

import ast
import inspect
import sys

import pytest

from benchmarks.bench.contest import Measure
from benchmarks.bench.ground import Ground
from benchmarks.bench.measures import MEASURES

#: (measure, figure, other): bound; None is shown only. Changing one is a decision, not an edit.
PROMISED = {
    **{
        (f"catch-up-{d}-{n}", "rate", "pg_recvlogical"): 0.5
        for d in ("wal2json", "pgoutput")
        for n in (1, 100)
    },
    ("catch-up-wal2json-1", "rate", "stock enqueue"): 5,
    ("catch-up-wal2json-100", "rate", "stock enqueue"): 8,
    ("catch-up-wal2json-100", "rate", "polling relay"): 3,
    ("redis-latency", "p50", "the reader alone"): 1.5,
    ("redis-latency", "p95", "the reader alone"): 2,
    ("claim-latency", "p50", "stock Dramatiq"): 1 / 3,
    ("claim-latency", "p99", "stock Dramatiq"): 0.1,
    ("claim-latency", "p50", "dramatiq-postgres"): 1,
    ("claim-latency", "p50", "polling relay at 1 s"): 0.02,
    ("actor", "rate", "stock RedisBroker"): 1.2,
    ("whole-job", "rate", "procrastinate"): 5,
    ("whole-job", "rate", "dramatiq-postgres"): 1.5,
    ("whole-job", "rate", "faststream-outbox"): 1,
    ("accept", "rate", "FastAPI, 202 only"): 1.1,
    ("accept", "rate", "one statement a request"): 2.5,
    ("accept", "rate", "pgbench"): 0.4,
    ("batches", "rate", "COPY"): 0.3,
    ("behind", "last", "alone"): 2,
    ("refill", "back", "pipelined write"): 5,
    ("backlog", "rate", "oncommit, 10,000 waiting"): 0.85,
    ("backlog", "peak", ""): 150,
    ("lanes", "cpu", "oncommit, 10 lanes"): 1.4,
}


def test_every_promised_floor_is_held_against_the_promised_bound() -> None:
    asked = {(m.name, f.figure, f.other): f.bound for m in MEASURES for f in m.floors if f.bound is not None}
    assert asked == PROMISED


@pytest.mark.parametrize("measure", MEASURES, ids=lambda m: m.name)
def test_a_measure_is_complete(measure: Measure, tmp_path_factory: pytest.TempPathFactory) -> None:
    ground = Ground(tmp_path_factory.mktemp("ground"), None, 0.01)  # type: ignore[arg-type]  # nothing starts
    contestants = measure.entrances(ground)
    for floor in measure.floors:
        assert floor.figure in {figure.key for figure in measure.figures}
        assert floor.ours in contestants
        assert floor.absolute or floor.other in contestants
    module = sys.modules[measure.entrances.__module__]
    told = inspect.getdoc(module) or ""
    for name in contestants:
        assert f"- {name}" in told, f"{module.__name__} does not say how {name} is set up"
    assert ast.get_docstring(ast.parse(inspect.getsource(module)))
