"""The line that each request leaves in the log: what structlog would write, by a shorter way.

It is the one line that is written all the time, and structlog's chain and the search for secrets cost a
third of a request. Its fields are few and known, so they are put together here and looked at in one go; where
one of them holds a letter that a secret could stand behind, the line goes the long way.
"""

import logging
import re
from datetime import UTC, datetime

import structlog
from structlog.stdlib import ProcessorFormatter

from runtime.logs import get_logger

NAME = "portal.door"
log = get_logger(NAME)
_logger = logging.getLogger(NAME)
#: All that runtime.logs.redact masks stands behind a colon, an equals sign, a space or a quote.
_PLAIN = re.compile(r"[A-Za-z0-9_./{}-]*")


def tell(level: int, **fields: str | float) -> None:
    """Write the line of a request with these fields and those that are bound to it."""
    if not _logger.isEnabledFor(level):
        return
    line = fields | structlog.contextvars.get_contextvars()
    if _PLAIN.fullmatch("".join(map(str, line.values()))) is None:
        log.log(level, "answered", **fields)
        return
    name = logging.getLevelName(level).lower()
    line |= {
        "event": "answered",
        "process": "portal",
        "level": name,
        "logger": NAME,
        "timestamp": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
    }
    (said,), more = ProcessorFormatter.wrap_for_formatter(_logger, name, line)
    _logger.handle(_logger.makeRecord(NAME, level, "", 0, said, (), None, extra=more["extra"]))
