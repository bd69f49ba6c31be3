"""Knocking at a frozen Redis holds up nobody."""

import time

import pytest

from broker.client import redis_client
from relay import knock
from relay.knock import Knock
from support.valkey import Valkey
from support.waiting import eventually

TIMEOUT_SECONDS = 0.5
#: A fourth question is put only after three were answered.
THRICE = 3


def test_a_frozen_redis_holds_up_nobody_and_is_noticed_when_it_thaws(valkey: Valkey) -> None:
    asked = Knock(redis_client(valkey.url, timeout=TIMEOUT_SECONDS))
    valkey.freeze()
    longest, began = 0.0, time.monotonic()
    while time.monotonic() - began < 3 * TIMEOUT_SECONDS:
        before = time.monotonic()
        assert not asked.answered()
        longest = max(longest, time.monotonic() - before)
    assert longest < TIMEOUT_SECONDS / 2
    valkey.thaw()
    eventually(asked.answered, timeout=5)


def test_a_refusal_is_an_answer(valkey: Valkey) -> None:
    asked = Knock(redis_client(valkey.url, timeout=TIMEOUT_SECONDS))
    valkey.kill()
    eventually(asked.answered, timeout=5)


def test_an_old_answer_is_none(valkey: Valkey, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Knock(redis_client(valkey.url, timeout=TIMEOUT_SECONDS))
    answers: set[bool] = set()

    def pings() -> int:
        told: dict[str, dict[str, int]] = valkey.client.info("commandstats")  # type: ignore[assignment]
        return told.get("cmdstat_ping", {}).get("calls", 0)

    before = pings()

    def answered_thrice() -> bool:
        answers.add(asked.answered())
        return pings() > before + THRICE

    monkeypatch.setattr(knock, "FRESH_SECONDS", -1.0)
    eventually(answered_thrice, timeout=5)
    assert answers == {False}, "each answer that came was too old"
    monkeypatch.undo()
    eventually(asked.answered, timeout=5)
