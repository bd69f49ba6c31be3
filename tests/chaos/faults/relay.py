"""Faults of the relay: killed anywhere, killed at each point that matters, frozen past a takeover."""

import signal
import time
from contextlib import suppress
from typing import ClassVar

from support.waiting import eventually

from ..fault import Fault
from ..member import Member

TOUCHES = frozenset({"relay"})
POINTS = ("after_decode", "before_publish", "after_publish", "before_confirm")
#: PostgreSQL gives a frozen relay's slot away after 10 s.
TAKEOVER_SECONDS = 30.0
#: The other one takes over within 5 s, and clients go on asking all the time.
FIRE_SECONDS = 15.0


class RelayKilled(Fault):
    """SIGKILL of the relay that reigns."""

    name = "relay-killed"
    touches = TOUCHES
    hold_seconds = (0.0, 1.0)

    def inject(self) -> None:
        self.world.active_relay().kill()


class BothRelaysKilled(Fault):
    """SIGKILL of both."""

    name = "relays-killed"
    touches = TOUCHES
    hold_seconds = (0.0, 1.0)

    def inject(self) -> None:
        for relay in self.world.of("relay"):
            relay.kill()


class RelayKilledAt(Fault):
    """The relay kills itself at the nth pass of a point between reading a row and confirming it."""

    touches = TOUCHES
    hold_seconds = (0.5, 2.0)
    point: ClassVar[str]
    _armed: Member | None = None

    def inject(self) -> None:
        active, standby = self.world.active_relay(), self.world.standby_relay()
        self._since, self._read = time.time(), standby.running.process.command.log.stat().st_size
        standby.restart_with(ONCOMMIT_FAILPOINTS=f"relay.{self.point}=kill@{self.rng.randint(1, 3)}")
        eventually(lambda: standby.role() or not standby.running.running, timeout=20)
        active.kill()  # the other one takes over, and dies of it once rows come
        self._armed = standby

    def heal(self) -> None:
        """Wait until it has died of that, and of nothing else; while other things are broken it may not."""
        if (armed := self._armed) is None:
            return
        with suppress(AssertionError):
            eventually(lambda: self._fired(armed), timeout=FIRE_SECONDS)
        self.world.history.add(
            "failpoint", fault=self.name, process=armed.name, fired=self._fired(armed), since=self._since
        )

    def _fired(self, armed: Member) -> bool:
        with armed.running.process.command.log.open("rb") as log:
            log.seek(self._read)
            said = f"failpoint relay.{self.point}: kill\n".encode() in log.read()
        ends = [
            e for e in self.world.history.of("ended") if e["process"] == armed.name and e["at"] > self._since
        ]
        return said and any(end["code"] == -signal.SIGKILL for end in ends)


class RelayFrozen(Fault):
    """SIGSTOP until the other relay has taken over; then it wakes up, and believes to reign."""

    name = "relay-frozen"
    touches = TOUCHES
    hold_seconds = (0.0, 1.0)

    def inject(self) -> None:
        standby = self.world.standby_relay()
        self._frozen = self.world.active_relay()
        self._frozen.running.freeze()
        eventually(lambda: standby.role() == "relay", timeout=TAKEOVER_SECONDS, every=0.2)

    def heal(self) -> None:
        self._frozen.running.thaw()


def _at(point: str) -> type[Fault]:
    name = f"relay-killed-{point.replace('_', '-')}"
    return type(f"RelayKilledAt_{point}", (RelayKilledAt,), {"name": name, "point": point})


FAULTS: tuple[type[Fault], ...] = (RelayKilled, BothRelaysKilled, RelayFrozen, *map(_at, POINTS))
