"""Metrics: one registry of what `runtime/metric_table.py` names.

A process exposes only what it has touched, from its own memory: nothing is shared between processes and
nothing lies on disk, so nothing falls, doubles or stays behind when one of several ends.
"""

import threading
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.exposition import generate_latest

from runtime.metric_table import TABLE, Metric

#: What `/metrics` answers, per the Prometheus text format 0.0.4.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

#: Seconds. From a claim (milliseconds) to the longest render (a minute) and its retries.
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

__all__ = [
    "CONTENT_TYPE",
    "TABLE",
    "Metric",
    "count",
    "exposition",
    "forget",
    "gauge",
    "gauges",
    "observe",
]


class _Metrics:
    """The registry, and the instruments made so far."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library's gap
        self.registry = CollectorRegistry()
        self.rows = {row.name: row for row in TABLE}
        self.made: dict[str, Counter | Gauge | Histogram] = {}
        self.series: dict[str, frozenset[tuple[str, ...]]] = {}  # of gauges that come and go
        self.lock = threading.Lock()

    def instrument(self, name: str) -> Counter | Gauge | Histogram:
        if (made := self.made.get(name)) is not None:
            return made
        with self.lock:
            if name not in self.made:
                self.made[name] = self._make(self.rows[name])
            return self.made[name]

    def forget(self, names: tuple[str, ...]) -> None:
        with self.lock:
            for name in names:
                self.series.pop(name, None)
                if (made := self.made.pop(name, None)) is not None:
                    self.registry.unregister(made)

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


def gauges(name: str, values: Mapping[tuple[str, ...], float]) -> None:
    """Set a labelled gauge of the table to these series and no others; keys are in the table's order.

    For one thread to call; a scrape meanwhile sees no gap.
    """
    instrument = _metrics.instrument(name)
    if not isinstance(instrument, Gauge):
        raise TypeError(f"{name} is no gauge")
    for gone in _metrics.series.get(name, frozenset()) - values.keys():
        instrument.remove(*gone)
    _metrics.series[name] = frozenset(values)
    for labels, value in values.items():
        instrument.labels(*labels).set(value)


def forget(*names: str) -> None:
    """Expose these no more, until they are touched again: what is not known is not a number."""
    _metrics.forget(names)


def observe(name: str, seconds: float, **labels: str) -> None:
    """Add one duration to a histogram of the table; raises as `count` does."""
    instrument = _metrics.instrument(name)
    if not isinstance(instrument, Histogram):
        raise TypeError(f"{name} measures no seconds")
    (instrument.labels(**labels) if labels else instrument).observe(seconds)


def exposition() -> bytes:
    """Return everything measured so far in the text format that `CONTENT_TYPE` names."""
    return generate_latest(_metrics.registry)
