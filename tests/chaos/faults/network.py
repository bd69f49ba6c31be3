"""Faults of the network between any two processes: cut, half-open, slow, connections dropped once."""

from typing import ClassVar, Literal

from support.proxy import Proxy

from ..fault import Fault
from ..member import Part

Manner = Literal["cut", "half-open", "slow", "dropped"]
Server = Literal["postgres", "redis"]
#: Who opens the connection.
End = Part | Literal["client"]
#: A piece of data late by this many seconds.
LATE_SECONDS = 0.15


class NetworkFault(Fault):
    """The link between one process and one server, or between clients and the portal."""

    part: ClassVar[End]
    server: ClassVar[Server | Literal["portal"]]
    manner: ClassVar[Manner]
    hold_seconds = (0.5, 6.0)

    def inject(self) -> None:
        self._link = self._choose()
        match self.manner:
            case "cut":
                self._link.cut()
            case "half-open":
                self._link.blackhole()
            case "slow":
                self._link.slow(LATE_SECONDS)
            case "dropped":
                self._link.drop()

    def heal(self) -> None:
        self._link.restore()

    def _choose(self) -> Proxy:
        if self.part == "client":
            link = self.world.portal.door
        else:
            world = self.world
            member = world.active_relay() if self.part == "relay" else self.rng.choice(world.of(self.part))
            link = member.postgres if self.server == "postgres" else member.redis
        assert link is not None
        return link


def _fault(part: End, server: Server | Literal["portal"], manner: Manner) -> type[Fault]:
    touched = {"relay": "relay", "worker": "workers", "portal": "portal", "client": "portal"}[part]
    fields = {
        "name": f"{part}-{server}-{manner}",
        "part": part,
        "server": server,
        "manner": manner,
        "touches": frozenset({touched}),
        # A worker that cannot beat is taken for lost.
        "interrupts": part == "worker" and server == "postgres" and manner in {"cut", "half-open"},
    }
    return type(f"Network_{part}_{server}_{manner}", (NetworkFault,), fields)


LINKS: tuple[tuple[End, Server | Literal["portal"]], ...] = (
    ("client", "portal"),
    ("portal", "postgres"),
    ("relay", "postgres"),
    ("relay", "redis"),
    ("worker", "postgres"),
    ("worker", "redis"),
)
MANNERS: tuple[Manner, ...] = ("cut", "half-open", "slow", "dropped")
FAULTS: tuple[type[Fault], ...] = tuple(
    _fault(part, server, manner) for part, server in LINKS for manner in MANNERS
)
