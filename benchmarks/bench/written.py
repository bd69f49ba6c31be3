"""Written: a database whose WAL holds committed intents, and the slots that stand before them."""

import subprocess
import time
from collections.abc import Mapping
from datetime import datetime
from itertools import count as counting

from benchmarks.bench.ground import Decoder, Ground, World, until
from relay.slot import new_decoder

LIMIT_SECONDS = 180.0
#: What is dropped at the very start is one read of at most 1,000 frames.
ALMOST = 0.8
PUBLICATION = "oncommit_outbox"
# One transaction for each round of the outer loop: COMMIT inside DO needs no way to the client and back.
FILL = """
DO $$ BEGIN
  FOR i IN 1..{transactions} LOOP
    INSERT INTO outbox (message_id, queue, lane, priority, body)
    SELECT m, 'previews', 'acme', 5, preview_message(m, 'previews', gen_random_uuid(), 1, NULL, now())
      FROM (SELECT 'acme|' || gen_random_uuid() || '.1' AS m FROM generate_series(1, {each})) AS rows;
    COMMIT;
  END LOOP;
END $$
"""
END = "SELECT pg_current_wal_insert_lsn()::text"
CONFIRMED = "SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots WHERE slot_name = %s"
COPY_SLOT = "SELECT pg_copy_logical_replication_slot(%s, %s)"
DROP_SLOT = (
    "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s AND NOT active"
)


class Written:
    """A database whose WAL holds the intents, and the slot that stands before them."""

    def __init__(self, world: World, decoder: Decoder, count: int, each: int) -> None:
        self.world, self.decoder, self.count = world, decoder, count
        self.origin = f"{world.database.slot}_origin"
        self._numbers = counting()
        world.team()
        world.admin.execute("SELECT pg_create_logical_replication_slot(%s, %s)", [self.origin, decoder])
        world.admin.execute("SET synchronous_commit = off")  # only the filling: readers see the same WAL
        world.admin.execute(FILL.format(transactions=count // each, each=each))  # type: ignore[arg-type]
        world.admin.execute("SET synchronous_commit = on")
        row = world.admin.execute(END).fetchone()
        assert row is not None
        self.end: str = row[0]

    def slot(self) -> str:
        """Return a slot that stands before the intents, for one turn."""
        name = f"{self.origin}_{next(self._numbers)}"
        self.world.admin.execute(COPY_SLOT, [self.origin, name])
        return name

    def drop(self, slot: str) -> None:
        """Let go of a turn's slot."""
        until(lambda: self.world.admin.execute(DROP_SLOT, [slot]).fetchone(), 30)

    def relay_turn(self, *, keep: bool) -> Mapping[str, float]:
        """Let a relay catch up; `keep`: the rows are in the table, so that all of them have to arrive."""
        world, slot = self.world, self.slot()
        world.valkey.client.flushall()
        relay = world.relay(ONCOMMIT_SLOT=slot, ONCOMMIT_DECODER=self.decoder)
        try:
            if keep:
                until(lambda: world.in_redis() >= self.count, LIMIT_SECONDS)
            until(
                lambda: world.admin.execute(CONFIRMED, [self.end, slot]).fetchone() == (True,), LIMIT_SECONDS
            )
            ended, count = time.time(), world.in_redis()
            began = _attached(relay.log_lines())
        finally:
            relay.stop()
            self.drop(slot)
        if count < ALMOST * self.count:
            raise RuntimeError(f"only {count:,} of {self.count:,} came into Redis")
        return {"rate": count / (ended - began)}

    def receive_turn(self, ground: Ground) -> Mapping[str, float]:
        """Let pg_recvlogical read the same."""
        slot = self.slot()
        options = new_decoder(self.decoder).options(PUBLICATION)
        command = [
            ground.program(self.decoder, "pg_recvlogical"), "--dbname", self.world.database.dsn(),
            "--slot", slot, "--start", "--file", "/dev/null", "--endpos", self.end, "--no-loop",
            *(word for name, value in options.items() for word in ("--option", f"{name}={value}")),
        ]  # fmt: skip
        began = time.perf_counter()
        subprocess.run(command, check=True, timeout=LIMIT_SECONDS, capture_output=True)  # noqa: S603
        took = time.perf_counter() - began
        self.drop(slot)
        return {"rate": self.count / took}


def _attached(lines: list[dict[str, str]]) -> float:
    [line] = [line for line in lines if line["event"] == "relay.attached"]
    return datetime.fromisoformat(line["timestamp"]).timestamp()
