"""A process' page of metrics, read as Prometheus reads it."""

from prometheus_client.parser import text_string_to_metric_families as parse

from support.processes import Running


def series(process: Running) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Scrape a process: (sample, labels) -> value."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse(process.page("/metrics"))
        for sample in family.samples
    }


def total(process: Running, name: str, **labels: str) -> float:
    """Sum the series of a name that have these labels."""
    return sum(
        value
        for (sample, found), value in series(process).items()
        if sample == name and labels.items() <= dict(found).items()
    )
