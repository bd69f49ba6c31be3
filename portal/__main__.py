"""`python -m portal`: serve until SIGTERM or SIGINT; answer what was taken, then end."""

import asyncio
import gc
import math
import resource
import signal
import sys
from functools import partial
from types import FrameType

import uvicorn
from fastapi import FastAPI

from portal.app import create, doored
from portal.server import KEEP_ALIVE_SECONDS, Protocol, Server, bind
from portal.wellformed import HEADER_BYTES
from runtime import logs
from runtime.beginning import begun
from runtime.health import base_url, write_atomically
from runtime.settings import Settings

try:
    from uvloop import new_event_loop
except ImportError:  # not made for every platform: asyncio's own does the same, in some more time
    from asyncio import new_event_loop  # type: ignore[assignment]  # any maker of loops

#: Objects that requests may make before the collector looks for cycles among them; by default 700, which is
#: a few dozen requests. None of them is large: what bodies hold is bounded by portal.bodies.
YOUNG_OBJECTS = 10_000

log = logs.get_logger(__name__)


def main() -> int:
    """Run the portal; return the exit code."""
    with begun("portal") as config:
        return serve(config)


def _already_obeyed(number: int, _: FrameType | None) -> None:
    """Let the process end with 0: uvicorn repeats a signal that it obeyed for the handler before its own."""
    log.info("ended", signal=number)


def _take_files() -> None:
    """Take as many open files as the process may have.

    Common soft limits (1,024) lie below the streams that are promised, and beyond the limit nobody gets in,
    probes included.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):  # a system whose hard limit is more than it allows
        log.warning("the limit of open files stays as it is", files=soft)


def _settle() -> None:
    """Let the collector look only at what requests make: what is here now is most of all, and stays."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 20)


def _end_streams(app: FastAPI) -> None:
    app.state.portal.streams.close()


def serve(config: Settings) -> int:
    """Serve with these settings until a signal; return the exit code."""
    try:
        listener = bind(config.host, config.port)
    except OSError as error:
        log.error("cannot listen", host=config.host, port=config.port, error=error.strerror)  # noqa: TRY400
        return 1
    _take_files()
    url = base_url(config.host, listener.getsockname()[1])
    app = create(config)

    def listening() -> None:
        _settle()
        log.info("listening", url=url)
        if config.health_file is not None:
            write_atomically(config.health_file, url)

    server = Server(
        uvicorn.Config(
            doored(app),
            http=Protocol,
            ws="none",
            loop="none",  # see below
            lifespan="on",
            log_config=None,
            access_log=False,  # the door writes one line for each request
            proxy_headers=False,
            server_header=False,
            h11_max_incomplete_event_size=HEADER_BYTES,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=math.ceil(config.shutdown_grace_seconds),
        ),
        listening=listening,
        stopping=partial(_end_streams, app),
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _already_obeyed)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(server.serve(sockets=[listener]))
    return 0 if server.started else 1


if __name__ == "__main__":
    sys.exit(main())
