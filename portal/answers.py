"""What routes answer with, and how OpenAPI says so."""

from collections.abc import Iterable, Mapping
from typing import Any

import orjson
from starlette.responses import Response

from portal.problems import KINDS, MEDIA_TYPE, Kind

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
}
#: What every authenticated route may say.
ALWAYS = (
    "malformed-http",
    "unauthenticated",
    "forbidden",
    "rate-limited",
    "internal",
    "database-unavailable",
)


def as_json(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON response; times are RFC 3339 with their offset."""
    return Response(orjson.dumps(content), status, dict(headers or {}), "application/json")


def with_headers(*names: str) -> dict[str, Any]:
    """Return the declaration of these response headers."""
    return {name: HEADERS[name] for name in names}


def told(*slugs: str) -> Declared:
    """Return the declaration of the problems that a route may answer, with those of every route."""
    found: Declared = {}
    for kind in _kinds(slugs):
        entry = found.setdefault(kind.status, _problem(kind.status))
        entry["description"] = "; ".join(filter(None, [entry["description"], f"`{kind.slug}`: {kind.title}"]))
        if kind.retry_after is not None:
            entry["headers"] |= with_headers("Retry-After")
    return found


def _kinds(slugs: Iterable[str]) -> list[Kind]:
    return [KINDS[slug] for slug in dict.fromkeys([*slugs, *ALWAYS])]


def _problem(status: int) -> dict[str, Any]:
    headers = with_headers("RateLimit", "RateLimit-Policy") if status != 401 else {}  # noqa: PLR2004
    if status in {401, 403}:
        headers |= with_headers("WWW-Authenticate")
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {"description": "", "headers": headers, "content": content}
