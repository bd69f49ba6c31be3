"""The relay's daemon: reigns one after the other, until it is told to stop.

`Relay.run` is the loop; a `Reign` (reign.py) is one attached stream, or polling while none can be had.
"""

import os
import socket
import time
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import Connection

from broker.client import redis_client
from broker.lanes import Lanes
from db.errors import DatabaseError, Refused
from db.pool import connect
from relay.errors import ServerAway, SlotBusy, StreamError
from relay.knock import Knock
from relay.publisher import Publisher
from relay.reign import Reign
from relay.remade import SlotMemory
from relay.sink import ReignOver
from relay.watch import Watch
from runtime.health import Health
from runtime.logs import get_logger
from runtime.settings import Settings

log = get_logger(__name__)

#: Redis answers a call of 500 rows in milliseconds. The walsender must hear from us every 10 s, so a
#: frozen Redis may hold us up for no longer than this, twice. Then it is knocked at, which holds up nobody.
REDIS_SECONDS = 2.0
#: A standby asks for the slot this often: it takes over within a second of the first one's death.
STANDBY_SECONDS = 0.5
#: Pauses after a failure: first, and the most it doubles to. PostgreSQL takes ~0.1 s to restart.
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 2.0
#: A standby and an outage are said at once and then this often.
REPEAT_SECONDS = 30.0
#: Without a turn for so long nothing is published: PostgreSQL hangs, or this machine does.
STILL_SECONDS = 5.0
#: A statement ends after 8 s by the server's clock. A server that is frozen has none: its link is cut.
STUCK_SECONDS = 10.0
#: Of what libpq says when it does not get through; of several hosts it says something of each.
REASON_CHARACTERS = 500
#: A relay whose loop has not turned for so long is not alive. What it waits for has ended long before.
LIVE_SECONDS = 25.0


class Relay:
    """One relay process. `stop()` may be called from a signal handler."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._client = redis_client(settings.redis_url.get_secret_value(), timeout=REDIS_SECONDS)
        lanes = Lanes(self._client, settings.namespace)
        self._publisher = Publisher(lanes)
        self._knock = Knock(self._client)
        self._watch = Watch(lanes, lambda: self._publisher.reigns, self.unstick)
        self._stopping = False
        self._turned = time.monotonic()
        self._conn: Connection[Any] | None = None
        self._reign: Reign | None = None
        self._standby = False
        self.slot_memory = SlotMemory()
        self._said: dict[str, float] = {}

    def stop(self) -> None:
        """Ask `run` to return; it does within a second, unless a server is frozen: see leaving.py."""
        self._stopping = True

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stopping

    def run(self) -> None:
        """Relay until `stop`; nothing that happens to PostgreSQL or Redis ends it."""
        self._watch.start()
        try:
            self._run()
        finally:
            self._watch.stop()

    def _run(self) -> None:
        pause = FIRST_PAUSE
        while not self._stopping:
            started = time.monotonic()
            self.turned()
            try:
                self._attempt()
            except SlotBusy as error:
                self._standby = True
                self._say("standby", "the slot is another relay's: waiting to take over", holder=str(error))
                self._sleep(STANDBY_SECONDS)
                continue
            except ReignOver as over:
                log.warning("relay.reign_over", reason=str(over))
            except Refused as error:
                self._say(
                    "refused", "the database lacks what it needs: run `oncommit migrate`", reason=str(error)
                )
            except (DatabaseError, ServerAway) as error:
                self._say("away", "PostgreSQL cannot be read: trying again", reason=str(error))
            except StreamError as error:
                log.error("relay.stream_failed", reason=str(error), kind=type(error).__name__)  # noqa: TRY400
            self._standby = False
            pause = (
                FIRST_PAUSE if time.monotonic() - started > REPEAT_SECONDS else min(pause * 2, LONGEST_PAUSE)
            )
            self._sleep(pause)

    def _attempt(self) -> None:
        with _connected(self._settings.database_url.get_secret_value()) as conn:
            self.turned()
            self._conn, self._reign = conn, Reign(self, self._settings, self._publisher, self._knock, conn)
            try:
                self._reign.run()
            finally:
                self._reign.close()
                self._conn = self._reign = None

    def turned(self) -> None:
        """Note that the loop turned, for liveness."""
        self._turned = time.monotonic()

    def unstick(self) -> None:
        """End a statement that a frozen server will not end, by its connection; from another thread."""
        conn = self._conn
        if conn is None or time.monotonic() - self._turned < STUCK_SECONDS:
            return
        with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(conn.fileno())) as link:
            link.shutdown(socket.SHUT_RDWR)
            log.warning("relay.unstuck", reason=f"PostgreSQL did not answer for {STUCK_SECONDS:g} s")

    def reigning(self) -> None:
        """Note that a reign has begun: this relay stands by no longer."""
        self._standby = False

    def _sleep(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._stopping and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))

    def _say(self, key: str, event: str, **fields: Any) -> None:
        now = time.monotonic()
        if now - self._said.get(key, -REPEAT_SECONDS) >= REPEAT_SECONDS:
            self._said[key] = now
            log.warning(event, **fields)

    def live(self) -> Health:
        """Liveness: the loop turns."""
        age = time.monotonic() - self._turned
        return Health(ok=age < LIVE_SECONDS, detail={"loop_turned_seconds_ago": round(age, 3)})

    def ready(self) -> Health:
        """Readiness: this relay publishes, or stands by for one that does, into a Redis that keeps it."""
        links, keeps = self._links(), self._watch.eviction
        return Health(ok=links.ok and keeps.ok, detail={**links.detail, **keeps.detail})

    def _links(self) -> Health:
        reign, still = self._reign, time.monotonic() - self._turned
        if still >= STILL_SECONDS:
            return Health(ok=False, detail={"role": "none", "reason": f"no turn for {still:.0f} s"})
        if self._standby:
            return Health(ok=True, detail={"role": "standby"})
        if reign is None:
            return Health(ok=False, detail={"role": "none", "reason": "PostgreSQL cannot be read"})
        return reign.ready()


# A standby that does not answer holds up every commit that waits for it, and no time-out ends that: an
# epoch drawn, or a row put away, need not wait. A statement gives up while the stream still lives (10 s).
SESSION = """
SELECT set_config('synchronous_commit', 'local', false), set_config('statement_timeout', '8s', false)
"""


def _connected(dsn: str) -> Connection[Any]:
    """Return an open connection for one reign.

    Raises:
        ServerAway: there is none to be had.

    """
    try:
        conn = connect(dsn, "oncommit relay")
        conn.execute(SESSION)
    except Exception as error:
        # libpq's own words: without them a wrong password looks like a server that is off. Logs mask secrets.
        told = " ".join(str(error).split())[:REASON_CHARACTERS]
        raise ServerAway(f"{type(error).__name__}: {told}") from error
    return conn
