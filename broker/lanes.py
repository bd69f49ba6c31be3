"""Fair lanes in Redis, as typed commands over one Lua source. No Dramatiq in here.

Each method is one atomic step. Errors of the connection or the server pass through as
`redis.exceptions.RedisError`: whoever calls knows what may be repeated.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any, Protocol, cast

from redis import Redis
from redis.exceptions import NoScriptError

from broker.packing import Arg, pairs, rows, text, token, triples
from broker.words import (
    PRIORITY_STEP,
    Fetched,
    LaneStats,
    Limit,
    Outgoing,
    Published,
    QueueStats,
    Seized,
    Settled,
    Token,
    TokenMismatch,
    Verb,
)

__all__ = [
    "PRIORITY_STEP",
    "Fetched",
    "LaneStats",
    "Lanes",
    "Limit",
    "Outgoing",
    "Published",
    "QueueStats",
    "Seized",
    "Settled",
    "Token",
    "TokenMismatch",
    "Verb",
]


class _Script:
    """One registration of lanes.lua: a first line of its own, hence a digest of its own."""

    def __init__(self, first_line: str) -> None:
        self.text = f"{first_line}\n" + files("broker").joinpath("lanes.lua").read_text(encoding="utf-8")
        self.digest = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


# Writers that fill Redis are refused as a whole when it is full; the others make it emptier.
_FILLING = _Script("#!lua")
_OTHER = _Script("#!lua flags=allow-oom")


class _Executes(Protocol):
    """The one untyped method of redis-py that is used here."""

    def execute_command(self, *args: Arg) -> Any: ...


class Lanes:
    """The lanes of one namespace. `clock` (ms) replaces the server's clock, in tests only."""

    def __init__(self, client: Redis, namespace: str, *, clock: Callable[[], int] | None = None) -> None:
        self.client = client
        self.namespace = namespace
        self._clock = clock
        self._execute = cast("_Executes", cast("Any", client)).execute_command

    def _call(self, script: _Script, command: str, *args: Arg) -> Any:
        now = "" if self._clock is None else self._clock()
        try:
            return self._execute("EVALSHA", script.digest, 1, self.namespace, command, now, *args)
        except NoScriptError:  # restarted, or SCRIPT FLUSH: it was not run; EVAL registers it again
            return self._execute("EVAL", script.text, 1, self.namespace, command, now, *args)

    # The relay's side ---------------------------------------------------------------------------

    def seize(self, epoch: int, *, forget_limits: bool = False) -> Seized:
        """Make (epoch, 0) the token. When data may have been lost, lanes stay closed for 1.2 s.

        `forget_limits`: what is known of lanes is of another life of the database, whose versions say
        nothing; each lane stays closed until its limits are published anew.

        Raises:
            TokenMismatch: the stored epoch is as high or higher.

        """
        reply: list[bytes | int] = self._call(_OTHER, "seize", epoch, int(forget_limits))
        if reply[0] == b"mismatch":
            raise TokenMismatch(token(reply[1], reply[2]))
        return Seized(lost=bool(reply[1]), position=self.position())

    def publish(
        self,
        expected: Token,
        *,
        messages: Sequence[Outgoing] = (),
        limits: Sequence[Limit] = (),
        position: Mapping[str, str] | None = None,
    ) -> tuple[Token, Published]:
        """Apply all or nothing if Redis still holds `expected`; return the next token.

        Limits apply before messages. A message that is alive is left as it is; but a newer intent of
        its id replaces it, or follows it if it is in flight. After a lost reply, call again with the
        very same arguments: it is applied once. At most some 500 rows a call.

        Raises:
            TokenMismatch: Redis holds another token.
            redis.exceptions.OutOfMemoryError: Redis is full; nothing was applied.

        """
        following = Token(expected.epoch, expected.seq + 1)
        args: list[Arg] = [expected.epoch, expected.seq, following.seq, len(position or ())]
        for name, value in (position or {}).items():
            args += (name, value)
        args.append(len(limits))
        for limit in limits:
            args += (limit.lane, limit.version, limit.packed())
        args += rows(messages)
        reply: list[bytes | int] = self._call(_FILLING, "publish", *args)
        if reply[0] == b"mismatch":
            raise TokenMismatch(token(reply[1], reply[2]))
        if reply[0] == b"same":
            return following, Published(0, 0, 0)
        return following, Published(*cast("list[int]", reply[1:]))

    def missing(self, queue: str, intents: Mapping[str, int]) -> list[str]:
        """Return those ids that are not alive, or alive only as an older intent; at most some 1,000 a call.

        `intents`: id -> intent, 0 where it is not known.
        """
        return [text(gone) for gone in self._call(_OTHER, "missing", queue, *pairs(intents))]

    def position(self) -> dict[str, str]:
        """Return the position that came with the last publish that had one."""
        stored = cast("dict[bytes, bytes]", self.client.hgetall(f"{self.namespace}:token"))
        return {
            name.decode().removeprefix("pos."): value.decode()
            for name, value in stored.items()
            if name.startswith(b"pos.")
        }

    def send(self, message: Outgoing, default: Limit) -> Published:
        """Put one message without a token, and settings for its lane if it has none. Losable."""
        return Published(*self._call(_FILLING, "send", default.lane, default.packed(), *rows([message])))

    # The consumer's side ------------------------------------------------------------------------

    def fetch(self, queue: str, consumer: str, count: int, settled: Iterable[Settled] = ()) -> Fetched:
        """Settle what is finished, then take up to `count` messages, lane by lane in turn."""
        reply: list[Any] = self._call(_OTHER, "fetch", queue, consumer, count, *triples(settled))
        rest = iter(reply[1:])
        messages: list[tuple[str, bytes]] = []
        intents: dict[str, int] = {}
        for message_id, score, body in zip(rest, rest, rest, strict=True):
            messages.append((text(message_id), body))
            intents[text(message_id)] = int(score) % PRIORITY_STEP
        return Fetched(messages, reply[0], intents)

    def settle(self, queue: str, consumer: str, settled: Iterable[Settled]) -> None:
        """End deliveries; those that this consumer does not hold (any more) are left alone."""
        self._call(_OTHER, "settle", queue, consumer, *triples(settled))

    def ack(self, queue: str, consumer: str, ids: Iterable[str]) -> None:
        """Forget messages that are done."""
        self.settle(queue, consumer, [Settled(i) for i in ids])

    def defer(self, queue: str, consumer: str, message_id: str, delay_ms: int, why: str = "") -> None:
        """Deliver again after `delay_ms`, as not started. `why` paused or full holds the lane too."""
        verb = Verb.HOLD if why in {"paused", "full"} else Verb.REFUND
        self.settle(queue, consumer, [Settled(message_id, verb, delay_ms)])

    def requeue(self, queue: str, consumer: str, ids: Iterable[str]) -> None:
        """Put messages back to their places, as not started."""
        self.settle(queue, consumer, [Settled(i, Verb.REQUEUE) for i in ids])

    def beat(self, queue: str, consumer: str, held: Mapping[str, int]) -> tuple[int, int]:
        """Say that this consumer lives and holds exactly these; return how many marks that changed.

        `held`: id -> intent, 0 where it is not known. Restored: Redis had lost them, or given them back.
        Dropped: a reply was lost on its way here.
        """
        restored, dropped = self._call(_OTHER, "beat", queue, consumer, *pairs(held))
        return restored, dropped

    def leave(self, queue: str, consumer: str) -> int:
        """Put everything that this consumer holds back and forget the consumer. Return how many messages."""
        return int(self._call(_OTHER, "leave", queue, consumer))

    def wait(self, queue: str, timeout_ms: int) -> bool:
        """Wait until somebody says that there may be work, at most `timeout_ms`. Blocks a connection."""
        seconds = max(timeout_ms, 1) / 1000  # 0 would mean for ever
        return self.client.blpop([f"{self.namespace}:{queue}:wake"], timeout=seconds) is not None

    # Anybody's ----------------------------------------------------------------------------------

    def stats(self, queue: str, top: int = 20) -> QueueStats:
        """Count a queue. Cost grows with `top` and with what is in flight, not with the backlog."""
        reply: list[Any] = self._call(_OTHER, "stats", queue, max(top, 1))
        messages, delayed, running, lanes_waiting, consumers, next_due = reply[:6]
        rest = iter(reply[6:])
        lanes = [
            LaneStats(text(lane), waiting, in_flight, text(state))
            for lane, waiting, in_flight, state in zip(rest, rest, rest, rest, strict=True)
        ]
        lanes.sort(key=lambda s: (-s.waiting, -s.running, s.lane))
        return QueueStats(
            messages=messages,
            waiting=max(messages - delayed - running, 0),
            delayed=delayed,
            running=running,
            lanes_waiting=lanes_waiting,
            consumers=consumers,
            next_due_ms=None if next_due < 0 else next_due,
            lanes=lanes[:top],
        )

    def ask(self, command: str, *args: str | int) -> Any:
        """Run one of the script's commands that only read; see broker/census.py."""
        return self._call(_OTHER, command, *args)

    def queues(self) -> list[str]:
        """Return the names of the queues that ever held a message."""
        names: Iterable[bytes] = cast("Any", self.client).smembers(f"{self.namespace}:queues")
        return sorted(text(name) for name in names)

    def eviction_policy(self) -> str:
        """Return the server's maxmemory policy; anything but `noeviction` drops messages at will."""
        memory: dict[str, Any] = cast("Any", self.client).info("memory")
        return str(memory.get("maxmemory_policy", "unknown"))

    def purge(self, queue: str, lane: str | None = None) -> int:
        """Drop what waits or is delayed, of one lane or of all; in-flight messages stay. Return how many."""
        return int(self._call(_OTHER, "purge", queue, lane or ""))
