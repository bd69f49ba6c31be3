"""Messages hold identifiers: no body above 4 KiB, and nothing of document, title or key in Redis."""

from collections.abc import Iterator

import redis

from support.postgres import Database
from support.processes import Processes
from support.team import House
from support.valkey import Valkey
from support.waiting import eventually

CONTENT, TITLE, KEY = b"of-the-document", "of-the-title", "of-the-key"
MAX_BODY_BYTES = 4096


def everything(client: redis.Redis) -> Iterator[bytes]:
    """Yield every key of Redis, and every name and value within."""
    for key in client.scan_iter("*"):
        yield key
        match client.type(key):
            case b"string":
                yield client.get(key)
            case b"hash":
                for field, value in client.hgetall(key).items():
                    yield from (field, value)
            case b"zset":
                yield from client.zrange(key, 0, -1)
            case b"set":
                yield from client.smembers(key)
            case b"list":
                yield from client.lrange(key, 0, -1)
            case b"none":  # it went meanwhile
                pass
            case kind:
                raise AssertionError(f"a key of type {kind!r}")


def test_a_message_is_small_and_holds_nothing_of_the_document(
    processes: Processes, database: Database, valkey: Valkey
) -> None:
    processes.relay()
    client = House(database, processes.portal(ONCOMMIT_SIMULATION="1"), processes).client()
    answer = client.post(
        {
            "document": client.put(CONTENT * 1000),
            "kind": "page",
            "priority": 9,
            "title": TITLE + "\U0001d11e" * (200 - len(TITLE)),  # four bytes each
            "simulate": {"sleep_ms": 1, "fail_first": 1, "allocate_mb": 1},
        },
        key=KEY + "k" * (255 - len(KEY)),
        traceparent="00-" + "a" * 32 + "-" + "b" * 16 + "-01",
    )
    assert answer.status_code == 202, answer.text
    job = answer.json()["id"]

    def look() -> list[bytes]:
        return list(everything(valkey.client))

    eventually(lambda: any(job.encode() in value for value in look()))
    waiting = look()
    processes.worker()
    eventually(lambda: client.http.get(f"/v1/jobs/{job}").json()["status"] == "succeeded", timeout=60)
    for value in (*waiting, *look()):
        assert len(value) <= MAX_BODY_BYTES
        assert not any(part in value for part in (CONTENT, TITLE.encode(), KEY.encode(), b"\xf0\x9d\x84\x9e"))
