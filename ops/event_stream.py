"""The portal's event streams as a client reads them (WHATWG HTML, "Server-sent events")."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import httpx

from ops.client import Client

# A stream that ended early is opened again after so long: the portal stops, or has too many.
AGAIN_SECONDS = 1.0
# The portal sends a comment every 15 s: a connection that is silent for twice that is none.
SILENT_SECONDS = 30.0


def events(client: Client, path: str, *, last: int, seconds: float) -> Iterator[Mapping[str, Any]]:
    """Yield the data of each event after `last`; end with the stream, its connection, or after `seconds`."""
    deadline = time.monotonic() + seconds
    silent = min(SILENT_SECONDS, max(seconds, 0.001))
    with (
        suppress(httpx.HTTPError),
        client.stream(path, last=str(last), silent_seconds=silent) as lines,
    ):
        for line in lines:
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))
            if time.monotonic() > deadline:
                return
