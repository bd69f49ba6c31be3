"""Logs: one JSON object a line on stderr, whatever the text; no secret in it.

JSON escapes control characters, so a newline or an ANSI code in a key, a title or an error text
cannot forge a second line. Passwords of URLs are masked wherever they appear.
"""

import logging
import re
import sys
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, cast

import orjson
import structlog
from structlog.typing import EventDict, WrappedLogger

# A raw @ in a password is a mistake, and a secret all the same; after it nothing beyond a quote is swallowed.
_URL_PASSWORD = re.compile(r"(\w+://[^\s:/@]*:)[^\s@]*@(?:[^\s\"'@]*@)*")
# libpq and psycopg quote what they cannot read of a connection string: a word with a %, a misspelt scheme.
_QUOTED_BY_LIBPQ = re.compile(
    r"((?:missing \"=\" after|invalid percent-encoded token:|forbidden value %00 in percent-encoded value:"
    r"|separator \"=\" in URI query parameter:|invalid URI query parameter:|invalid port number:"
    r"|invalid integer value) )\".*\""
    r"|((?:could not translate|failed to resolve) host (?:name )?[\"'])[^\"']*@"
)
_KEYWORD_PASSWORD = re.compile(r"(password\s*=\s*)('[^']*'|\S+)", re.IGNORECASE)
# What follows a scheme or `Authorization:`, but for what cannot be a secret: a placeholder such as <token>,
# and after a scheme alone a short word of prose ("a bearer token is needed").
_TOKEN = re.compile(
    r"(authorization['\"]?\s*[:=]\s*['\"]?(?:(?:bearer|basic)\s+)?)(?!<\w+>|(?:bearer|basic)\s)\S+"
    r"|\b((?:bearer|basic)\s+)(?!<\w+>|(?-i:[a-z]{1,12})\b(?![\w~+/=-]|\.\w))\S+",
    re.IGNORECASE,
)
# What every secret above has about it. Most texts have none of these, and one search tells.
_SUSPICIOUS = re.compile(r"[@\"]|password|authorization|bearer|basic", re.IGNORECASE)
# Terminals obey them and some readers take them for the end of a line; JSON lets them pass.
_CONTROLS = re.compile("[\x7f-\x9f\u2028\u2029]")


def redact(text: str) -> str:
    """Return `text` with the passwords of URLs and DSNs, and bearer tokens, masked."""
    if _SUSPICIOUS.search(text) is None:
        return text
    text = _URL_PASSWORD.sub(r"\1***@", text)
    text = _KEYWORD_PASSWORD.sub(r"\1***", text)
    text = _QUOTED_BY_LIBPQ.sub(lambda found: f"{found[1]}***" if found[1] else f"{found[2]}***@", text)
    return _TOKEN.sub(lambda found: f"{found[1] or found[2]}***", text)


def _redact_values(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    for name, value in event.items():
        event[name] = _redacted(value)
    return event


def _redacted(value: Any) -> Any:
    """Return the value with every string in it redacted; what is no JSON becomes its text."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        items = cast("Iterable[tuple[Any, Any]]", value.items())
        return {redact(str(key)): _redacted(each) for key, each in items}
    if isinstance(value, list | tuple | set | frozenset):
        return [_redacted(each) for each in cast("Iterable[Any]", value)]
    return redact(value if isinstance(value, str) else str(value))


def _dumps(value: Any, default: Any = None) -> str:
    try:
        text = orjson.dumps(value, default=default or repr).decode()
    except TypeError:  # a lone surrogate, a number of more than 64 bits: say what it was, escaped
        text = orjson.dumps({"event": ascii(value)}).decode()
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


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


def about_message(message_id: str) -> dict[str, str | None]:
    """Return the fields of a line about a message of which only the id is known."""
    team, _, rest = message_id.partition("|")
    job, _, dispatch = rest.rpartition(".")
    # Of an actor of somebody's own there is no job, and its lane is no team's perhaps.
    return {
        "message_id": message_id,
        "team": team,
        "job": job or None,
        "dispatch": dispatch if job else None,
        "attempt": None,
    }


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """Return the logger of a module; keyword arguments of its methods become fields."""
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return logger
