"""What routes answer with, and how OpenAPI says so."""

from collections.abc import Iterable, Mapping
from typing import Any

import orjson
from starlette.responses import Response

from portal.problems import KINDS, MEDIA_TYPE, Problem, document

#: A trace id, for examples.
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"

Declared = dict[int | str, dict[str, Any]]

PROBLEM_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string", "description": "`/problems/<slug>`; GET /problems explains each"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "what is wrong, or what to do"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["pointer", "detail"],
                "properties": {
                    "pointer": {
                        "type": "string",
                        "description": "JSON pointer into the body, or a parameter",
                    },
                    "detail": {"type": "string"},
                },
            },
        },
        "errors_left_out": {"type": "integer"},
        "trace": {"type": "string", "description": "the trace id to name when you report it"},
    },
}

HEADERS: Mapping[str, Mapping[str, Any]] = {
    "Location": {"description": "the resource's path", "schema": {"type": "string"}},
    "Retry-After": {"description": "seconds to wait", "schema": {"type": "integer", "minimum": 0}},
    "Idempotent-Replayed": {
        "description": "the key had been decided for this very request; nothing was written",
        "schema": {"type": "string", "enum": ["true"]},
    },
    "RateLimit": {"description": "what is left, and seconds until full", "schema": {"type": "string"}},
    "RateLimit-Policy": {"description": "the team's quota and window", "schema": {"type": "string"}},
    "WWW-Authenticate": {"description": "RFC 6750 challenge", "schema": {"type": "string"}},
    "ETag": {"description": "the preview's digest", "schema": {"type": "string"}},
    "Accept-Ranges": {"description": "bytes", "schema": {"type": "string"}},
    "Content-Range": {"description": "which bytes these are", "schema": {"type": "string"}},
    "Content-Disposition": {"description": "a file name", "schema": {"type": "string"}},
    "Content-Security-Policy": {"description": "nothing in it may run", "schema": {"type": "string"}},
    "Last-Modified": {"description": "when the preview was made", "schema": {"type": "string"}},
    "Accept-Encoding": {
        "description": "which encodings are taken, where one was not (RFC 9110, 12.5.3)",
        "schema": {"type": "string", "enum": ["identity"]},
    },
    "X-Accel-Buffering": {
        "description": "on a stream: asks proxies to pass it on at once",
        "schema": {"type": "string", "enum": ["no"]},
    },
    "Cache-Control": {"description": "`no-store`, except for previews", "schema": {"type": "string"}},
    "X-Content-Type-Options": {
        "description": "the type is as said, not to be guessed",
        "schema": {"type": "string", "enum": ["nosniff"]},
    },
}
#: What may be said of every request, whatever it asks for: it is not looked at further.
OF_THE_DOOR = ("malformed-http", "too-slow", "headers-too-large", "internal")
#: What every authenticated route may say besides; `invalid-request`, of a parameter that is given twice.
ALWAYS = (
    *OF_THE_DOOR,
    "unauthenticated",
    "forbidden",
    "invalid-request",
    "rate-limited",
    "database-unavailable",
)
#: Said before it is known whose request it is.
OF_NOBODY = frozenset({401, 431})
#: Headers that only one status has.
ONLY = {
    401: ("WWW-Authenticate",),
    403: ("WWW-Authenticate",),
    415: ("Accept-Encoding",),
    416: ("Content-Range",),
}


def as_json(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON response; times are RFC 3339 with their offset."""
    return Response(orjson.dumps(content), status, dict(headers or {}), "application/json")


def with_headers(*names: str) -> dict[str, Any]:
    """Return the declaration of these response headers."""
    return {name: HEADERS[name] for name in names}


def told(*slugs: str) -> Declared:
    """Return the declaration of the problems that a route may answer, with those of every route."""
    return _declared([*slugs, *ALWAYS])


def told_by_the_door() -> Declared:
    """Return the declaration of the problems that any request may have."""
    found = _declared(OF_THE_DOOR)
    for entry in found.values():
        entry["headers"] = {}  # nobody's rate is spent on pages that ask for no token
    return found


def _declared(slugs: Iterable[str]) -> Declared:
    found: Declared = {}
    for kind in (KINDS[slug] for slug in dict.fromkeys(slugs)):
        entry = found.setdefault(kind.status, _problem(kind.status))
        entry["description"] = "; ".join(filter(None, [entry["description"], f"`{kind.slug}`: {kind.title}"]))
        entry["content"][MEDIA_TYPE]["examples"][kind.slug] = {
            "summary": kind.title,
            "value": document(Problem(kind.slug), TRACE),
        }
        if kind.retry_after is not None:
            entry["headers"] |= with_headers("Retry-After")
    return found


def _problem(status: int) -> dict[str, Any]:
    headers = with_headers("RateLimit", "RateLimit-Policy") if status not in OF_NOBODY else {}
    headers |= with_headers(*ONLY.get(status, ()))
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}, "examples": {}}}
    return {"description": "", "headers": headers, "content": content}
