"""Faults of the relay: killed anywhere, killed at each point that matters, frozen past a takeover."""

from typing import ClassVar

from support.waiting import eventually

from ..armed import Armed
from ..fault import Fault

TOUCHES = frozenset({"relay"})
POINTS = ("after_decode", "before_publish", "after_publish", "before_confirm")
#: PostgreSQL gives a frozen relay's slot away after 10 s.
TAKEOVER_SECONDS = 30.0


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
    _armed: Armed | None = None

    def inject(self) -> None:
        active, standby = self.world.active_relay(), self.world.standby_relay()
        armed = Armed(standby, f"relay.{self.point}", self.rng.randint(1, 3))
        eventually(lambda: standby.role() or not standby.running.running, timeout=20)
        active.kill()  # the other one takes over, and dies of it once rows come
        self._armed = armed

    def heal(self) -> None:
        """Wait until it has died of that."""
        if self._armed is not None:
            self._armed.tell(self.world.history, self.name)


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
