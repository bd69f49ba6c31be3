"""An eye on Redis' eviction policy: with any but `noeviction`, a full Redis drops messages at will.

The relay's audit would bring them back, a minute late and again and again: so whoever sees it says so,
and is not ready until it is put right.
"""

from threading import Event

from redis.exceptions import RedisError

from broker.lanes import Lanes
from runtime import metrics
from runtime.logs import get_logger

log = get_logger(__name__)

WANTED = "noeviction"
#: Somebody may change it at run time; one INFO this often costs nothing, seconds.
LOOK_SECONDS = 5.0


class Eviction:
    """What Redis last said; `policy` is None until it has said anything."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self.policy: str | None = None

    @property
    def ok(self) -> bool:
        """Tell whether Redis keeps what it is given, as far as is known."""
        return self.policy in {None, WANTED}

    @property
    def detail(self) -> dict[str, str]:
        """Say what is wrong, for a health page; empty when nothing is."""
        if self.ok:
            return {}
        return {"redis_policy": f"maxmemory-policy is {self.policy}: set it to {WANTED}"}

    def look(self) -> None:
        """Ask Redis; while it is away, what it said last holds."""
        try:
            policy = self._lanes.eviction_policy()
        except RedisError:
            return
        if policy != self.policy:
            if policy != WANTED:
                log.error("Redis may drop messages: set maxmemory-policy to noeviction", policy=policy)
            elif self.policy is not None:
                log.info("Redis keeps what it is given again", policy=policy)
        self.policy = policy
        metrics.gauge("redis_keeps_messages", float(policy == WANTED))

    def run(self, stopped: Event) -> None:
        """Look every few seconds until `stopped`."""
        self.look()
        while not stopped.wait(LOOK_SECONDS):
            self.look()
