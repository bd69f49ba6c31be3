"""Requests as RFC 9112 wants them: what the parser lets through, and two readers could read differently.

h11 checks the letters of a request. Whether it is of a version that is spoken here, framed in one way
only, and no larger than announced, is said here; and its target is brought into the form that routes know.
"""

from urllib.parse import unquote

from starlette.types import Scope

from portal.problems import Problem

#: Of the request line and headers together, as they came. h11 counts only while they are incomplete, so
#: that what comes in one piece would pass; here everybody meets the same limit.
HEADER_BYTES = 16 << 10
#: Two spaces, the version and the line's end; of a header, the colon, a space and the line's end.
LINE_BYTES, FIELD_BYTES = 12, 4
VERSIONS = frozenset({"1.0", "1.1"})
SCHEMES = (b"http://", b"https://")


def refusal(scope: Scope) -> Problem | None:
    """Return why the request is not taken whatever it asks for, None when nothing is wrong."""
    if _size(scope) > HEADER_BYTES:
        return Problem("headers-too-large")
    if scope["http_version"] not in VERSIONS:
        return Problem("malformed-http", "HTTP/1.1 and HTTP/1.0 are spoken here.")
    names = {name for name, _ in scope["headers"]}
    # Section 6.1: a proxy that believes the other one of the two would see another request in the body.
    if b"transfer-encoding" in names and (b"content-length" in names or scope["http_version"] == "1.0"):
        return Problem("malformed-http", "Transfer-Encoding comes without Content-Length, in HTTP/1.1.")
    return None


def _size(scope: Scope) -> int:
    line = len(scope["method"]) + len(scope["raw_path"]) + 1 + len(scope["query_string"]) + LINE_BYTES
    return line + sum(len(name) + len(value) + FIELD_BYTES for name, value in scope["headers"])


def in_origin_form(scope: Scope) -> Scope:
    """Return the request with its target as a path: a server must take `GET http://host/path`, too."""
    raw: bytes = scope["raw_path"]
    if not raw.lower().startswith(SCHEMES):
        return scope
    _, slash, path = raw.partition(b"://")[2].partition(b"/")
    raw = (slash + path) or b"/"
    return {**scope, "raw_path": raw, "path": unquote(raw.decode("ascii"))}
