"""Much WAL: others' is let go of whatever Redis does, and a huge transaction of ours never begins anew."""

import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from relay.publisher import ROWS_PER_CALL
from support.metrics_page import total
from support.processes import Processes, Running
from support.proxy import Proxies
from support.server_setting import setting
from support.valkey import Valkey
from support.waiting import eventually

from .test_relay import accept, admin, expected, in_redis

__all__ = ["admin", "in_redis"]

#: 64 MB is over a second of this. All that a disk takes would tell how long a busy machine keeps the relay
#: from its turn, not whether the relay confirms.
NOISE_MB_A_SECOND = 50.0
NOISE = "SELECT pg_logical_emit_message(false, 'noise', repeat(md5(random()::text), 32768))"  # 1 MB
LAG = "SELECT pg_current_wal_lsn() - confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = %s"
RETAINED = "SELECT pg_current_wal_lsn() - restart_lsn FROM pg_replication_slots WHERE slot_name = %s"
PAUSE = "SELECT pause_lane('*', %s, 'test', 'WAL while nothing may run')"
MB = 1 << 20
MANY = """
INSERT INTO outbox (message_id, queue, lane, priority, body)
SELECT 'acme|' || n, 'previews', 'acme', 5, '{"padding":"' || repeat('x', 400) || '"}'
  FROM generate_series(1, %s) AS n
"""
MORE = 20_000


def lag_mb(conn: psycopg.Connection, query: str, slot: str) -> float:
    row = conn.execute(query, [slot]).fetchone()  # type: ignore[arg-type]
    assert row is not None
    return float(row[0]) / MB


def peak_mb(relay: Running) -> float:
    """Return the most memory that it ever had resident."""
    status = Path(f"/proc/{relay.pid}/status").read_text(encoding="ascii")
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


@pytest.mark.parametrize("trouble", ["none", "killed", "frozen", "paused"])
def test_wal_of_others_is_let_go_of(
    admin: psycopg.Connection, processes: Processes, valkey: Valkey, in_redis: Any, trouble: str
) -> None:
    relay, slot = processes.relay(), processes.database.slot
    if trouble == "killed":
        valkey.kill()
    elif trouble == "frozen":
        valkey.freeze()
    elif trouble == "paused":
        admin.execute(PAUSE, [True])
    if trouble in {"killed", "frozen"}:
        relay.wait_log("relay.redis_away")
    most = 0.0
    elsewhere = processes.database.server.connect("postgres")
    began = time.monotonic()
    for n in range(300):
        time.sleep(max(0.0, began + n / NOISE_MB_A_SECOND - time.monotonic()))
        (admin if n % 2 else elsewhere).execute(NOISE)
        if n % 50 == 0:
            accept(admin)
        most = max(most, lag_mb(admin, LAG, slot))
    elsewhere.close()
    assert most < 64

    def little() -> bool:
        admin.execute("CHECKPOINT")
        return lag_mb(admin, RETAINED, slot) < 16

    eventually(little, timeout=60, every=0.5)
    assert relay.log_text().count("relay.attached") == 1
    if trouble == "frozen":
        valkey.thaw()
    elif trouble == "paused":
        assert in_redis() == expected(admin), "published all the same: it is the lane that is closed"


def test_a_huge_transaction_over_a_slow_link_never_begins_anew(
    admin: psycopg.Connection, processes: Processes, valkey: Valkey, proxies: Proxies, in_redis: Any
) -> None:
    """It takes longer than any time-out: the server hears from a relay that is busy publishing."""
    proxy = proxies.to(valkey.port)
    url = f"redis://127.0.0.1:{proxy.port}/0"
    with setting(processes.database.server, "wal_sender_timeout", "5000"):
        relay = processes.relay(ONCOMMIT_REDIS_URL=url, ONCOMMIT_AUDIT_SECONDS="3600")
        # Ready comes before the first resync is over: slowed down, that would bring the same rows once more.
        relay.wait_log("relay.caught_up")
        proxy.slow(0.05)  # for each 64 KB: a call of 500 rows, which has 2 s, takes a quarter of one and more
        admin.execute(MANY, [MORE])
        [job] = accept(admin)
        counts = [0]

        def all_there() -> bool:
            counts.append(len(in_redis()))
            return counts[-1] == MORE + 1

        eventually(all_there, timeout=120, every=0.5)
        assert f"acme|{job}.1" in in_redis()
    assert counts == sorted(counts), "never less than before"
    assert relay.log_text().count("relay.attached") == 1
    assert peak_mb(relay) < 150

    def told() -> str:
        lines = relay.page("/metrics").splitlines()
        return "\n".join(line for line in lines if line.startswith("relay_"))

    def counted() -> bool:
        # A call that takes longer than 2 s, on a slow machine, is written and not counted.
        unknown = ROWS_PER_CALL * total(relay, "relay_redis_errors_total")
        return MORE + 1 - unknown <= total(relay, "relay_published_total") <= MORE + 1

    # Redis shows a row before the relay has its answer and counts it. Each is new once, by whatever road.
    eventually(counted, every=0.5, describe=told)
