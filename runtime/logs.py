"""Logs: one JSON object a line on stderr, whatever the text; no secret in it.

JSON escapes control characters, so a newline or an ANSI code in a key, a title or an error text
cannot forge a second line. Passwords of URLs are masked wherever they appear.
"""

import logging
import re
import sys
from contextlib import AbstractContextManager
from typing import Any

import orjson
import structlog
from structlog.typing import EventDict, WrappedLogger

_URL_PASSWORD = re.compile(r"(\w+://[^\s:/@]*:)[^\s@]*@")
_KEYWORD_PASSWORD = re.compile(r"(password\s*=\s*)('[^']*'|\S+)", re.IGNORECASE)
_BEARER = re.compile(r"((?:bearer|authorization:?)\s+)\S+", re.IGNORECASE)


def redact(text: str) -> str:
    """Return `text` with the passwords of URLs and DSNs, and bearer tokens, masked."""
    text = _URL_PASSWORD.sub(r"\1***@", text)
    text = _KEYWORD_PASSWORD.sub(r"\1***", text)
    return _BEARER.sub(r"\1***", text)


def _redact_values(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = redact(value)
    return event


def _dumps(value: Any, default: Any = None) -> str:
    try:
        return orjson.dumps(value, default=default or repr).decode()
    except TypeError:  # a lone surrogate, or a key that is no string: say what it was, escaped
        return orjson.dumps({"event": ascii(value)}).decode()


def configure(process: str, level: str = "info") -> None:
    """Send structlog and the standard library's loggers (dramatiq, uvicorn) to stderr as JSON lines.

    `process` (portal, relay, worker, oncommit) is a field of every line.
    """

    def name_process(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        event.setdefault("process", process)  # not a context variable: threads do not inherit those
        return event

    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        name_process,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _redact_values,
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.PositionalArgumentsFormatter(),
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(serializer=_dumps),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("httpx", "httpcore", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def about(**fields: Any) -> AbstractContextManager[None]:
    """Give every line that this thread (or task) writes within the block these fields, whoever writes it."""
    return structlog.contextvars.bound_contextvars(**fields)


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """Return the logger of a module; keyword arguments of its methods become fields."""
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return logger
