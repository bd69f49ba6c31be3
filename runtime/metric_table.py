"""The table of everything that is measured, and the table in `docs/metrics.md`, made from it.

`python -m runtime.metric_table docs/metrics.md` writes it again. A row is: name, kind, process, meaning,
labels. Labels are bounded by construction: a label's values are a closed set (a kind, an outcome, a route
template), or capped (the 50 longest lanes); never an id, a key, a path or an error text.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table: `name` as exposed (a counter's ends in `_total`), and what it means."""

    name: str
    kind: Literal["counter", "gauge", "seconds"]
    process: Literal["portal", "relay", "worker", "relay, worker"]
    meaning: str
    labels: Sequence[str] = ()


TABLE: Sequence[Metric] = (
    Metric("jobs_accepted_total", "counter", "portal", "jobs whose acceptance committed", ("kind",)),
    Metric("requests_decided_total", "counter", "portal", "decisions on idempotency keys", ("outcome",)),
    Metric("documents_put_total", "counter", "portal", "documents that were stored"),
    Metric("documents_put_bytes_total", "counter", "portal", "bytes of those documents"),
    Metric("http_requests_total", "counter", "portal", "answers", ("method", "route", "status")),
    Metric("http_request_seconds", "seconds", "portal", "time to answer", ("method", "route")),
    Metric("open_streams", "gauge", "portal", "event streams that are open"),
    # What PostgreSQL says, asked for each scrape: the same from every portal, so take the max.
    Metric("database_answers", "gauge", "portal", "1 if PostgreSQL answered for this scrape, else 0"),
    Metric("oldest_due_intent_seconds", "gauge", "portal", "age of the oldest intent that is due"),
    Metric("due_intents", "gauge", "portal", "intents that are due and not consumed; counted up to 100,000"),
    Metric("dead_jobs", "gauge", "portal", "dead letters; counted up to 10,000"),
    Metric("relay_published_total", "counter", "relay", "messages written to Redis", ("road",)),
    Metric("relay_duplicate_publishes_total", "counter", "relay", "messages that Redis held already"),
    Metric(
        "relay_token_mismatches_total",
        "counter",
        "relay",
        "losses and rival relays met",
    ),
    Metric("relay_catch_ups_total", "counter", "relay", "passes over the outbox table", ("occasion",)),
    Metric("relay_resyncs_total", "counter", "relay", "passes that publish whatever Redis lacks", ("cause",)),
    Metric("relay_quarantined_total", "counter", "relay", "intents put away for their columns"),
    Metric("relay_decode_errors_total", "counter", "relay", "frames not understood; their rows are resynced"),
    Metric("relay_redis_errors_total", "counter", "relay", "times that Redis could not be written"),
    Metric(
        "relay_slots_made_total",
        "counter",
        "relay",
        "slots that this relay made; `remade`: found made again, or moved on, by another hand",
        ("why",),
    ),
    # Of the relay that reigns; one that stands by shows none of them but the first, which is 0.
    Metric("relay_streaming", "gauge", "relay", "1 while this relay reads the WAL"),
    Metric("relay_slot_lag_bytes", "gauge", "relay", "WAL that the slot has not confirmed"),
    Metric("relay_slot_retained_bytes", "gauge", "relay", "WAL that the slot keeps on disk"),
    Metric("relay_slot_safe_bytes", "gauge", "relay", "WAL left before the slot is lost; -1: no limit"),
    Metric("relay_slot_wal_status", "gauge", "relay", "1 for the slot's wal_status", ("status",)),
    # From Redis every 10 s, by the relay that reigns. `lane`: the 50 longest, and `other` for the rest.
    Metric("lane_waiting", "gauge", "relay", "messages that may run", ("queue", "lane")),
    Metric("lane_delayed", "gauge", "relay", "messages that are not due yet", ("queue", "lane")),
    Metric("lane_running", "gauge", "relay", "messages in flight", ("queue", "lane")),
    Metric("lanes", "gauge", "relay", "lanes with waiting messages, by what holds them", ("queue", "state")),
    Metric("lanes_looked_at_seconds", "gauge", "relay", "what looking at all lanes cost"),
    Metric("redis_keeps_messages", "gauge", "relay, worker", "1 if Redis' policy is noeviction, else 0"),
    Metric("claims_total", "counter", "worker", "answers to claims, and dropped messages", ("answer",)),
    Metric("deferrals_total", "counter", "worker", "messages put back before a claim", ("why",)),
    Metric("attempts_total", "counter", "worker", "renders begun, by what came before", ("kind", "after")),
    Metric("claims_ended_total", "counter", "worker", "how claims ended, if it took", ("how", "outcome")),
    Metric("render_seconds", "seconds", "worker", "time in the renderer", ("kind",)),
    Metric("render_errors_total", "counter", "worker", "renders that gave no preview", ("error",)),
    Metric("renders_running", "gauge", "worker", "claims that this process runs"),
    Metric("jobs_rescued_total", "counter", "worker", "claims taken from lost workers", ("outcome",)),
    Metric("worker_quarantined_total", "counter", "worker", "messages that no actor can read", ("outcome",)),
    Metric("workers_alive", "gauge", "worker", "workers whose heartbeat moves: of all, so take the max"),
)

BEGIN, END = "<!-- from runtime/metric_table.py -->\n", "<!-- end -->\n"


def as_markdown() -> str:
    """Return the table as `docs/metrics.md` shows it."""
    lines = ["| metric | kind | labels | of | what |", "|---|---|---|---|---|"]
    for row in TABLE:
        labels = ", ".join(f"`{label}`" for label in row.labels)
        kind = "histogram, s" if row.kind == "seconds" else row.kind
        lines.append(f"| `{row.name}` | {kind} | {labels} | {row.process} | {row.meaning} |")
    return "\n".join(lines) + "\n"


def renewed(page: str) -> str:
    """Return the page with the table between its marks made anew.

    Raises:
        ValueError: the marks are not there.

    """
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"no {BEGIN.strip()} ... {END.strip()} in the page")
    return f"{head}{BEGIN}{as_markdown()}{END}{tail}"


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.write_text(renewed(target.read_text(encoding="utf-8")), encoding="utf-8")
