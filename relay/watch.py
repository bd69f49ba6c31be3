"""The relay's watch over Redis, beside its loop: the eviction policy, and the census of the lanes.

The counts of lanes are for the relay that reigns to tell: two would tell them twice.
"""

import threading
import time
from collections.abc import Callable
from typing import Final

from redis.exceptions import RedisError

from broker import census
from broker.eviction import LOOK_SECONDS, Eviction
from broker.lanes import Lanes
from runtime import metrics
from runtime.logs import get_logger

log = get_logger(__name__)

#: Between counts of the lanes, seconds.
CENSUS_SECONDS: Final = 10.0
TURN_SECONDS: Final = 1.0
LANE_GAUGES: Final = ("lane_waiting", "lane_delayed", "lane_running", "lanes", "lanes_looked_at_seconds")


class Watch:
    """One thread, from `start` to `stop`; `reigns` tells whether this relay is the one that publishes.

    `turn` is called each second: the relay's own look at its loop.
    """

    def __init__(self, lanes: Lanes, reigns: Callable[[], bool], turn: Callable[[], None]) -> None:
        self.eviction = Eviction(lanes)
        self._lanes = lanes
        self._reigns = reigns
        self._turn = turn
        self._stopped = threading.Event()

    def start(self) -> None:
        """Begin to look."""
        threading.Thread(target=self._run, name="watch", daemon=True).start()

    def stop(self) -> None:
        """Look no more."""
        self._stopped.set()

    def _run(self) -> None:
        look_at = count_at = 0.0
        while not self._stopped.is_set():
            self._turn()
            now = time.monotonic()
            if look_at <= now:
                look_at = now + LOOK_SECONDS
                self.eviction.look()
            if count_at <= now and self._tell():  # at once when a reign begins
                count_at = now + CENSUS_SECONDS
            self._stopped.wait(TURN_SECONDS)

    def _tell(self) -> bool:
        """Expose the census; without a reign, or without Redis, expose none. Return whether there is one."""
        started = time.monotonic()
        try:
            counted = census.take(self._lanes) if self._reigns() else None
        except RedisError:
            counted = None
        except Exception:  # a picture for people must not end the watch over what matters
            log.exception("the lanes could not be counted")
            counted = None
        if counted is None:
            metrics.forget(*LANE_GAUGES)
            return False
        metrics.gauges("lane_waiting", counted.waiting)
        metrics.gauges("lane_delayed", counted.delayed)
        metrics.gauges("lane_running", counted.running)
        metrics.gauges("lanes", counted.states)
        metrics.gauge("lanes_looked_at_seconds", time.monotonic() - started)
        return True
