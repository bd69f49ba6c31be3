"""A fault: something that goes wrong, and is over at some time."""

import random
from abc import ABC, abstractmethod
from typing import ClassVar

from .world import World


class Fault(ABC):
    """One fault on one world.

    Attributes:
        name: as `--faults` takes it.
        touches: what no other fault may touch at the same time.
        interrupts: renders may end by it, so a second start soon after is no violation.
        hold_seconds: for how long it lasts, from and to.

    """

    name: ClassVar[str]
    touches: ClassVar[frozenset[str]]
    interrupts: ClassVar[bool] = False
    hold_seconds: ClassVar[tuple[float, float]] = (0.3, 3.0)

    def __init__(self, world: World, rng: random.Random) -> None:
        self.world = world
        self.rng = rng

    def tell(self) -> None:
        """Write into the history that it begins, and what it may explain."""
        self.world.history.add(
            "inject", fault=self.name, interrupts=self.interrupts, touches=sorted(self.touches)
        )

    @abstractmethod
    def inject(self) -> None:
        """Break it."""

    def heal(self) -> None:
        """Mend it. Nothing to do for what is over at once."""
        return
