"""How the words of broker/words.py travel to lanes.lua and back: as flat lists."""

from collections.abc import Iterable, Mapping

from broker.words import PRIORITY_STEP, Outgoing, Settled, Token

Arg = str | int | bytes


def rows(messages: Iterable[Outgoing]) -> list[Arg]:
    """Return runs of one queue and delay: queue, delay, how many, and of each its id and `score body`."""
    args: list[Arg] = []
    run, counted, count = None, 0, 0
    for m in messages:
        if (m.queue, m.delay_ms) != run:
            run = (m.queue, m.delay_ms)
            if count:
                args[counted] = count
            args += (m.queue, m.delay_ms, 0)
            counted, count = len(args) - 1, 0
        count += 1
        args += (m.message_id, b"%d %b" % (m.priority * PRIORITY_STEP + m.intent, m.body))
    if count:
        args[counted] = count
    return args


def pairs(intents: Mapping[str, int]) -> list[Arg]:
    """Return id, intent, id, intent and so on."""
    return [word for pair in intents.items() for word in pair]


def triples(settled: Iterable[Settled]) -> list[Arg]:
    """Return of each its verb, its id and its delay in ms."""
    args: list[Arg] = []
    for s in settled:
        args += (s.verb.value, s.message_id, s.delay_ms)
    return args


def text(value: bytes) -> str:
    """Return what Redis answered as text."""
    return value.decode()


def token(epoch: bytes | int, seq: bytes | int) -> Token | None:
    """Return the token that Redis holds, None when it holds none."""
    return Token(int(epoch), int(seq or 0)) if epoch else None
