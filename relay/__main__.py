"""`python -m relay`: tail the WAL, publish what was committed. SIGTERM ends it within a second."""

import signal
import sys
from types import FrameType

from relay.service import Relay
from runtime import logs, tracing
from runtime.health import serve_health
from runtime.settings import SettingsError, settings


def main() -> int:
    """Run the relay until SIGTERM or SIGINT; return the exit code."""
    try:
        config = settings()
    except SettingsError as error:
        print(f"oncommit relay: {error}", file=sys.stderr)  # noqa: T201 -- before there are logs
        return 2
    logs.configure("relay", config.log_level)
    try:
        tracing.configure("relay", config.traces)
    except SettingsError as error:
        logs.get_logger(__name__).critical("cannot start", reason=str(error))
        return 2
    relay = Relay(config)

    def stop(_: int, __: FrameType | None) -> None:
        relay.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    health = serve_health(relay.live, relay.ready)
    try:
        relay.run()
    finally:
        health.close()
        tracing.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
