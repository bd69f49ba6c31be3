"""Everything that the portal can say no with: one table, RFC 9457 documents, no texts of the machinery.

`type` is a path under which the portal explains the problem (`GET /problems`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from starlette.responses import Response

MEDIA_TYPE = "application/problem+json"
#: A longer list helps nobody, and an answer must not grow with a hostile question.
MAX_ERRORS = 100


@dataclass(frozen=True, slots=True)
class Kind:
    """One row of the table: what happened, and what the caller should do."""

    slug: str
    status: int
    title: str
    advice: str
    retry_after: int | None = None  # seconds


TABLE: Sequence[Kind] = (
    Kind("malformed-http", 400, "This is no valid HTTP request", "Use an HTTP library."),
    Kind("malformed-json", 400, "The body is no valid JSON", "Send one JSON text in UTF-8, without BOM."),
    Kind(
        "idempotency-key",
        400,
        "The Idempotency-Key header is missing or not usable",
        "Send exactly one Idempotency-Key header of 1 to 255 visible ASCII characters; a UUID will do.",
    ),
    Kind(
        "unauthenticated",
        401,
        "A valid token is needed",
        "Send `Authorization: Bearer <token>` with a token that is neither expired nor revoked.",
    ),
    Kind("forbidden", 403, "The token's scope does not cover this", "Use a token with the scope named."),
    Kind("not-found", 404, "There is no such thing for this team", "Check the address and the token's team."),
    Kind("method-not-allowed", 405, "This resource does not know this method", "See the Allow header."),
    Kind("too-slow", 408, "The request did not arrive in time", "Send it again over a faster connection."),
    Kind(
        "key-busy",
        409,
        "Another request with this Idempotency-Key is being decided",
        "Send the same request again after Retry-After.",
        retry_after=1,
    ),
    Kind("not-ready", 409, "There is no preview yet", "Ask again after Retry-After.", retry_after=1),
    Kind("no-preview", 409, "The job ended without a preview", "See the job's status and error_class."),
    Kind("already-finished", 409, "The job has ended and cannot be cancelled", "See the job's status."),
    Kind("too-large", 413, "The body is larger than allowed", "Send less than the limit named."),
    Kind(
        "unsupported-media-type",
        415,
        "The body's type or encoding is not taken here",
        "Send an allowed Content-Type in UTF-8, without Content-Encoding.",
    ),
    Kind("bad-range", 416, "The range lies outside the preview", "See the Content-Range header."),
    Kind("invalid-request", 422, "The request has wrong values", "Correct what `errors` names."),
    Kind(
        "key-reused",
        422,
        "This Idempotency-Key was used for another request",
        "Use a new key for a new request, and the same request for the same key.",
    ),
    Kind("unknown-document", 422, "The team has not put this document", "PUT it to /v1/documents first."),
    Kind("digest-mismatch", 422, "The bytes that arrived are not those announced", "Send them again."),
    Kind("simulation-off", 422, "`simulate` is not accepted here", "Leave it out."),
    Kind("rate-limited", 429, "The team sends too many requests", "Wait for Retry-After.", retry_after=1),
    Kind(
        "backlog-full",
        429,
        "The team has too many unfinished jobs",
        "Wait until some are finished; the same key may be used again.",
        retry_after=5,
    ),
    Kind("headers-too-large", 431, "The request line and headers are too large", "Send less than 16 KiB."),
    Kind("internal", 500, "The portal made a mistake", "Report it with the trace id."),
    Kind(
        "database-unavailable",
        503,
        "The database does not answer as it should",
        "Send the same request with the same key again after Retry-After: it finds out what became of it.",
        retry_after=1,
    ),
    Kind("overloaded", 503, "The portal has too much in hand", "Try again after Retry-After.", retry_after=1),
    Kind(
        "preview-missing",
        503,
        "The preview's file is lost",
        "Ask again later: an operator can have it made anew from the document.",
        retry_after=60,
    ),
    Kind(
        "storage-unavailable",
        503,
        "The document store does not work as it should",
        "Send the same request again after Retry-After.",
        retry_after=5,
    ),
    Kind("storage-full", 507, "There is no room for the document", "Ask the operator.", retry_after=60),
)

KINDS: Mapping[str, Kind] = {kind.slug: kind for kind in TABLE}


@dataclass(frozen=True, slots=True)
class Fault:
    """One wrong place in a request: a JSON pointer into the body (or a parameter's name), and why."""

    pointer: str
    detail: str


@dataclass
class Problem(Exception):
    """Raised anywhere in a request, answered by the handler: a kind of the table and its particulars."""

    slug: str
    detail: str | None = None
    errors: Sequence[Fault] = ()
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    #: Faults that were counted and not kept.
    left_out: int = 0

    @property
    def kind(self) -> Kind:
        """The row of the table."""
        return KINDS[self.slug]


def document(problem: Problem, trace: str | None) -> dict[str, Any]:
    """Return the RFC 9457 document."""
    kind = problem.kind
    found: dict[str, Any] = {
        "type": f"/problems/{kind.slug}",
        "title": kind.title,
        "status": kind.status,
        "detail": problem.detail or kind.advice,
    }
    if problem.errors:
        found["errors"] = [{"pointer": e.pointer, "detail": e.detail} for e in problem.errors[:MAX_ERRORS]]
        if left_out := problem.left_out + max(0, len(problem.errors) - MAX_ERRORS):
            found["errors_left_out"] = left_out
    if trace is not None:
        found["trace"] = trace
    return found


def encoded(problem: Problem, trace: str | None) -> bytes:
    """Return the document as bytes: always valid JSON, whatever text a caller got into it."""
    try:
        return orjson.dumps(document(problem, trace))
    except TypeError:  # a lone surrogate: say the same without the caller's words
        return orjson.dumps(document(Problem(problem.slug), trace))


def answer(problem: Problem, trace: str | None = None) -> Response:
    """Return the response that tells the problem."""
    kind = problem.kind
    headers = dict(problem.headers)
    if kind.retry_after is not None:
        headers.setdefault("Retry-After", str(kind.retry_after))
    return Response(encoded(problem, trace), kind.status, headers, MEDIA_TYPE)
