"""A server of the stack: on a loopback port that it keeps, once somebody was told of it."""

from abc import ABC, abstractmethod

from ops.guardian import Guardian
from ops.ports import free_port
from ops.processes import Command, Process, StartError

# The port was free a moment ago: another program may take it in between, so a start tries others.
PORT_TRIES = 5
ADDRESS_IN_USE = "Address already in use"


class EmbeddedServer(ABC):
    """What PostgreSQL and Valkey have in common; `start` after any ending comes back on the same port."""

    READY_SECONDS: float

    def __init__(self, guardian: Guardian) -> None:
        self.port = free_port()
        self.process = Process(self.command(), guardian)
        self._answered = False

    @abstractmethod
    def command(self) -> Command:
        """Return what to run, on the port as it is now."""

    @abstractmethod
    def prepare(self) -> None:
        """Make ready what a start on the port as it is now needs."""

    @abstractmethod
    def answers(self) -> bool:
        """Tell whether it serves now."""

    def start(self) -> None:
        """Start it and wait until it answers.

        Raises:
            StartError: it does not; the message has the end of its log.

        """
        for left in reversed(range(PORT_TRIES)):
            self.prepare()
            self.process.command = self.command()
            self.process.start()
            try:
                self.process.wait_until(self.answers, self.READY_SECONDS)
            except StartError:
                self.process.kill()
                # Once somebody was told the port it has to stay.
                if self._answered or left == 0 or ADDRESS_IN_USE not in self.process.log_text():
                    raise
                self.port = free_port()
            else:
                self._answered = True
                return

    def stop(self) -> None:
        """Shut it down in order: asked first, then told, then killed."""
        self.process.end()

    def kill(self) -> None:
        """SIGKILL the whole server, as a power cut would."""
        self.process.kill()
