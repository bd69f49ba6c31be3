"""A member of the world: one process, its links, and the hands that end and start it."""

import dataclasses
import threading
from contextlib import suppress
from typing import Literal

from support.processes import Running
from support.proxy import Proxy

Part = Literal["portal", "relay", "worker"]


@dataclasses.dataclass
class Member:
    """A process of the world and its links.

    Attributes:
        door: what leads clients to a portal.
        expected: a fault is why it ends next.
        expects_to_die: it is given work that kills it, any number of times.
        hand: whoever ends or starts it holds this.

    """

    name: str
    part: Part
    running: Running
    postgres: Proxy
    redis: Proxy | None
    door: Proxy | None = None
    expected: bool = False
    expects_to_die: bool = False
    hand: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    def role(self) -> str:
        """Return what a relay says it is: `relay`, `standby`, `polling`, or nothing."""
        with suppress(OSError, ValueError):
            page = self.running.page("/readyz")
            return next((r for r in ("standby", "polling", "relay") if f'"{r}"' in page), "")
        return ""

    def kill(self) -> None:
        """SIGKILL it; it is started again."""
        with self.hand:
            self.expected = True
            self.running.kill()

    def signal(self, number: int) -> None:
        """Signal it; if it ends, that is expected."""
        self.expected = True
        self.running.signal(number)

    def change_to(self, **env: str) -> None:
        """Kill it and start it with these variables from now on."""
        with self.hand:
            self.running.kill()
            command = self.running.process.command
            self.running.process.command = dataclasses.replace(command, env={**command.env, **env})
            self.running.restart()

    def restart_with(self, **env: str) -> None:
        """Kill it and start it with these variables, which the start after that one has no more."""
        with self.hand:
            self.running.kill()
            command = self.running.process.command
            self.running.process.command = dataclasses.replace(command, env={**command.env, **env})
            try:
                self.running.restart()
            finally:
                self.running.process.command = command
                self.expected = True
