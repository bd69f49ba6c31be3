"""What a scrape shows: the truth, bounded labels whatever the traffic, in time, of every process."""

import secrets
import time
from typing import Any

import httpx

from runtime.metrics import TABLE
from support.metrics_page import series, total
from support.processes import Running
from support.waiting import eventually

CANARY = "canary"
#: They come and go; how many series each has is tested with ten thousand teams.
GAUGES = {row.name for row in TABLE if row.kind == "gauge"}
LANES = """
INSERT INTO outbox (message_id, queue, lane, priority, not_before, body)
SELECT id || '|' || 'x', 'previews', id, 5, NULL, '{}' FROM teams
"""
TEAMS = "INSERT INTO teams (id) SELECT 'team-' || n FROM generate_series(1, 10000) n"


def hostile(system: Any, client: Any, n: int) -> list[str]:
    """Do what makes labels explode elsewhere; return the ids of the accepted jobs."""
    ids: list[str] = []
    for i in range(n):
        secret = f"{CANARY}-{secrets.token_hex(6)}"
        with httpx.Client(base_url=system.portal.url, trust_env=False) as http:
            http.get(f"/{secret}/../{secret}?q={secret}", headers={"Authorization": f"Bearer {secret}"})
            http.request(f"M{secret.upper()}", f"/v1/jobs/{secret}")
            http.get(f"/v1/jobs/{secret}", headers={"traceparent": secret, "User-Agent": secret})
        simulate = ({}, {"fail_permanently": True}, {"fail_first": 1})[i % 3]
        answer = client.post(
            {"document": client.put(secret.encode()), "kind": "page", "title": f'"{secret}\\\n\x1b[31m',
             "simulate": simulate, "max_attempts": 2},
            key=secret,
        )  # fmt: skip
        if answer.status_code == 422:
            answer = client.post({"document": client.put(secret.encode()), "kind": "page", "title": secret,
                                  "simulate": simulate})  # fmt: skip
        assert answer.status_code == 202, answer.text
        ids.append(answer.json()["id"])
    return ids


def test_labels_stay_bounded_under_hostile_traffic_and_totals_match_the_database(system: Any) -> None:
    client = system.client()
    ids = hostile(system, client, 12)
    ended = "SELECT count(*) FROM jobs WHERE finished_at IS NOT NULL"
    eventually(lambda: system.database.admin.execute(ended).fetchone() == (12,), timeout=60)
    series(system.portal)  # a scrape of the portal is a request like any other, which the next one shows
    before = [set(series(process)) for process in system.all()]
    ids += hostile(system, client, 12)
    eventually(lambda: system.database.admin.execute(ended).fetchone() == (24,), timeout=60)
    for process, names in zip(system.all(), before, strict=True):
        shown = process.page("/metrics")
        assert CANARY not in shown.lower()
        for job in ids:
            assert job not in shown
        new = {one for one in set(series(process)) - names if one[0] not in GAUGES}
        assert not new, f"{process.name}: the same traffic made new series"
        assert len(names) < 700, process.name
    assert total(system.portal, "jobs_accepted_total") == 24
    assert total(system.worker, "attempts_total") == 24 + 8, "each third job fails once"
    assert total(system.worker, "attempts_total", after="failure") == 8
    assert total(system.worker, "claims_ended_total", how="died") == 8
    assert total(system.worker, "claims_ended_total", how="succeeded", outcome="done") == 16
    assert total(system.portal, "dead_jobs") == 8
    assert total(system.relay, "relay_published_total") == 24 + 8
    # What was being written when it attached makes a second one; nothing was lost.
    harmless = [total(system.relay, "relay_resyncs_total", cause=one) for one in ("attached", "seen_late")]
    assert total(system.relay, "relay_resyncs_total") == sum(harmless)
    eventually(lambda: total(system.relay, "relay_slot_wal_status") == 1)
    assert total(system.worker, "workers_alive") == 1
    eventually(lambda: total(system.worker, "renders_running") == 0, timeout=5)
    assert total(system.portal, "oldest_due_intent_seconds") == 0


def test_ten_thousand_teams_are_scraped_in_time_and_fifty_are_named(processes: Any, database: Any) -> None:
    portal, relay = processes.portal(), processes.relay()
    few = {process.name: fastest(process) for process in (portal, relay)}
    database.admin.execute(TEAMS)
    database.admin.execute(LANES)
    eventually(lambda: total(relay, "lane_waiting") == 10_000, timeout=60)
    shown = {labels for name, labels in series(relay) if name == "lane_waiting"}
    assert len(shown) == 51
    assert total(relay, "lane_waiting", lane="other") == 9_950
    assert total(portal, "due_intents") == 10_000
    for process in (portal, relay):
        many = fastest(process)
        assert many < 0.2, f"{process.name}: {many:.3f} s, and {few[process.name]:.3f} s with no team at all"


def fastest(process: Running) -> float:
    """Return the fastest of ten scrapes, seconds: what it costs, not what else the machine does."""
    times: list[float] = []
    for _ in range(10):
        begun = time.perf_counter()
        assert process.get("/metrics") == 200
        times.append(time.perf_counter() - begun)
    return min(times)


def test_without_postgresql_the_age_of_the_oldest_is_not_told(processes: Any, server: Any) -> None:
    portal = processes.portal()
    assert total(portal, "database_answers") == 1
    assert ("oldest_due_intent_seconds", ()) in series(portal)
    server.stop()
    try:
        eventually(lambda: total(portal, "database_answers") == 0, timeout=20)
        assert ("oldest_due_intent_seconds", ()) not in series(portal)
    finally:
        server.start()


def test_a_policy_that_drops_messages_makes_relay_and_worker_unhealthy(system: Any) -> None:
    system.processes.valkey.config(maxmemory_policy="allkeys-lru")
    for process in (system.relay, system.worker):
        # Under load it may be unready for another reason first: wait for this one.
        # Ready up to here, so this is the one reason.
        eventually(lambda p=process: p.get("/readyz") == 503)  # type: ignore[misc]
        assert "allkeys-lru" in process.page("/readyz")
        assert process.get("/livez") == 200, "a restart would not help"
        assert total(process, "redis_keeps_messages") == 0
        process.wait_log("Redis may drop messages")
    system.processes.valkey.config(maxmemory_policy="noeviction")
    for process in (system.relay, system.worker):
        process.wait_ready()
