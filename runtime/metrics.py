"""Metrics: one table of everything that is measured, and one registry.

Labels are bounded by construction: a label's values are a closed set (a kind, an outcome, a route
template), never an id, a key, a path or an error text. A process exposes only what it has touched.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.exposition import generate_latest

#: What `/metrics` answers, per the Prometheus text format 0.0.4.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

#: Seconds. From a claim (milliseconds) to the longest render (a minute) and its retries.
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table: `name` as exposed (a counter's ends in `_total`), and what it means."""

    name: str
    kind: Literal["counter", "gauge", "seconds"]
    meaning: str
    labels: Sequence[str] = ()


TABLE: Sequence[Metric] = (
    # portal
    Metric("jobs_accepted_total", "counter", "jobs whose acceptance committed", ("kind",)),
    Metric("requests_decided_total", "counter", "decisions on idempotency keys", ("outcome",)),
    Metric("documents_put_total", "counter", "documents that were stored"),
    Metric("documents_put_bytes_total", "counter", "bytes of those documents"),
    Metric("http_requests_total", "counter", "answers of the portal", ("method", "route", "status")),
    Metric("http_request_seconds", "seconds", "time to answer", ("method", "route")),
    Metric("open_streams", "gauge", "event streams that are open"),
    Metric("oldest_due_intent_seconds", "gauge", "age of the oldest intent that is due, by PostgreSQL"),
    Metric("due_intents", "gauge", "intents that are due and not consumed"),
    # relay
    Metric("relay_published_total", "counter", "messages written to Redis", ("road",)),
    Metric("relay_duplicate_publishes_total", "counter", "messages that Redis held already"),
    Metric("relay_token_mismatches_total", "counter", "times Redis had lost data or another relay reigned"),
    Metric("relay_catch_ups_total", "counter", "passes over the outbox table", ("occasion",)),
    Metric("relay_quarantined_total", "counter", "intents put away by the relay"),
    Metric("relay_decode_errors_total", "counter", "frames that could not be read; their rows are resynced"),
    Metric("relay_redis_errors_total", "counter", "times Redis could not be written"),
    Metric("relay_slots_made_total", "counter", "replication slots made", ("why",)),
    Metric("relay_streaming", "gauge", "1 while this relay reads the WAL"),
    Metric("relay_slot_lag_bytes", "gauge", "WAL that the slot has not confirmed"),
    Metric("relay_slot_retained_bytes", "gauge", "WAL that the slot keeps on disk"),
    Metric("relay_slot_safe_bytes", "gauge", "WAL left before the slot is lost; -1: no limit"),
    # workers
    Metric("claims_total", "counter", "answers to claims, and messages that were dropped", ("answer",)),
    Metric("claims_ended_total", "counter", "how claims ended, and whether that took", ("how", "outcome")),
    Metric("render_seconds", "seconds", "time in the renderer", ("kind",)),
    Metric("render_errors_total", "counter", "renders that ended without a preview", ("error",)),
    Metric("renders_running", "gauge", "claims that this process runs"),
    Metric("jobs_rescued_total", "counter", "claims taken from lost workers", ("outcome",)),
    Metric("workers_alive", "gauge", "worker processes whose heartbeat moves, as this one sees it"),
)


class _Metrics:
    """The registry, and the instruments made so far."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library's gap
        self.registry = CollectorRegistry()
        self.rows = {row.name: row for row in TABLE}
        self.made: dict[str, Counter | Gauge | Histogram] = {}
        self.lock = threading.Lock()

    def instrument(self, name: str) -> Counter | Gauge | Histogram:
        if (made := self.made.get(name)) is not None:
            return made
        with self.lock:
            if name not in self.made:
                self.made[name] = self._make(self.rows[name])
            return self.made[name]

    def _make(self, row: Metric) -> Counter | Gauge | Histogram:
        labels = tuple(row.labels)
        if row.kind == "counter":
            return Counter(row.name, row.meaning, labels, registry=self.registry)
        if row.kind == "gauge":
            return Gauge(row.name, row.meaning, labels, registry=self.registry)
        return Histogram(row.name, row.meaning, labels, registry=self.registry, buckets=SECONDS)


_metrics = _Metrics()


def count(name: str, amount: float = 1, **labels: str) -> None:
    """Add to a counter of the table.

    Raises:
        KeyError: the table does not name it.
        ValueError: the labels are not the table's.
        TypeError: it is no counter.

    """
    instrument = _metrics.instrument(name)
    if not isinstance(instrument, Counter):
        raise TypeError(f"{name} is no counter")
    (instrument.labels(**labels) if labels else instrument).inc(amount)


def gauge(name: str, value: float, **labels: str) -> None:
    """Set a gauge of the table; raises as `count` does."""
    instrument = _metrics.instrument(name)
    if not isinstance(instrument, Gauge):
        raise TypeError(f"{name} is no gauge")
    (instrument.labels(**labels) if labels else instrument).set(value)


def observe(name: str, seconds: float, **labels: str) -> None:
    """Add one duration to a histogram of the table; raises as `count` does."""
    instrument = _metrics.instrument(name)
    if not isinstance(instrument, Histogram):
        raise TypeError(f"{name} measures no seconds")
    (instrument.labels(**labels) if labels else instrument).observe(seconds)


def exposition() -> bytes:
    """Return everything measured so far in the text format that `CONTENT_TYPE` names."""
    return generate_latest(_metrics.registry)
