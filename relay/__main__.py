"""`python -m relay`: tail the WAL, publish what was committed. SIGTERM ends it within a second."""

import gc
import sys

from relay.leaving import stop_on_signals
from relay.service import Relay
from runtime.beginning import begun
from runtime.health import serve_health
from runtime.logs import get_logger

log = get_logger(__name__)


def main() -> int:
    """Run the relay until SIGTERM or SIGINT; return the exit code."""
    with begun("relay") as config:
        relay = Relay(config)
        stop_on_signals(relay.stop)
        try:
            health = serve_health(relay.live, relay.ready)
        except OSError as error:
            log.critical("the health page finds no port", host=config.host, reason=error.strerror)
            return 1
        # What is imported stays: without this a burst's rows have the collector look at all of it again.
        gc.freeze()
        try:
            relay.run()
        finally:
            health.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
