"""The replication reader alone: `python -m benchmarks.bench.stream_reader DSN SLOT PLUGIN FILE`.

Reads a slot with the relay's own stream and decoder, appends `message id, time` of each intent to the file,
confirms, and publishes nothing: what is left of the relay's latency is the WAL's.
"""

import os
import sys
import time

from relay.events import Commit, OutboxRow
from relay.slot import new_decoder
from relay.stream import ReplicationStream

WAIT_SECONDS = 0.3


def main(dsn: str, slot: str, plugin: str, file: str) -> None:
    """Read until killed."""
    log = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    decoder = new_decoder("pgoutput" if plugin == "pgoutput" else "wal2json")
    with ReplicationStream.open(dsn, slot, decoder, publication="oncommit_outbox") as stream:
        os.write(log, b"ready 0\n")
        while True:
            frames = stream.read(WAIT_SECONDS)
            done = 0
            for frame in frames:
                for event in decoder.feed(frame.payload, frame.lsn):
                    if isinstance(event, OutboxRow):
                        os.write(log, f"{event.message_id} {time.time():.6f}\n".encode())
                    elif isinstance(event, Commit):
                        done = event.end_lsn
            if done:
                stream.confirm(done)
            elif not frames:
                stream.confirm_idle()


if __name__ == "__main__":
    main(*sys.argv[1:])
