"""Previews: GET and HEAD /v1/jobs/{id}/preview, conditional and resumable (RFC 9110).

The bytes come from a renderer that read a stranger's document: they are never offered as a type that
a browser executes, and a browser is told not to guess.
"""

import asyncio
from pathlib import Path

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from portal.answers import told, with_headers
from portal.callers import Reader
from portal.context import portal
from portal.jobs import known_job
from portal.problems import Problem
from runtime.blobs import BlobStoreUnavailable

router = APIRouter(prefix="/v1/jobs", tags=["previews"])

PNG = b"\x89PNG\r\n\x1a\n"
#: A succeeded job keeps its preview, and its bytes are named by their digest.
CACHE = "private, max-age=3600, immutable"
#: Nothing in it may run or load anything, should somebody open it as a page all the same.
POLICY = "default-src 'none'; sandbox"
RATES = with_headers("RateLimit", "RateLimit-Policy")
KNOWN = with_headers("ETag", "Content-Security-Policy") | RATES
SENT = KNOWN | with_headers("Accept-Ranges", "Content-Disposition", "Last-Modified")
BINARY = {"schema": {"type": "string", "format": "binary"}}
CONTENT = {"image/png": BINARY, "application/octet-stream": BINARY}
RESPONSES = {
    200: {"description": "the whole preview", "content": CONTENT, "headers": SENT},
    206: {
        "description": "the range that was asked for",
        "content": CONTENT,
        "headers": SENT | with_headers("Content-Range"),
    },
    304: {"description": "If-None-Match names this very preview", "headers": KNOWN},
    **told("not-found", "not-ready", "no-preview", "bad-range", "preview-missing", "storage-unavailable"),
}
CONDITIONS = {
    "parameters": [
        {"name": name, "in": "header", "required": False, "schema": {"type": "string"}, "description": text}
        for name, text in (
            ("If-None-Match", "an ETag that the caller has"),
            ("Range", "`bytes=first-last`, one range"),
            ("If-Range", "the ETag that the range belongs to"),
        )
    ]
}


@router.get(
    "/{job_id}/preview",
    response_class=Response,
    responses=RESPONSES,
    openapi_extra=CONDITIONS,
    summary="Fetch a preview",
)
async def get_preview(request: Request, job_id: str, caller: Reader) -> Response:
    """Send the preview, or the part of it that is asked for."""
    job = await known_job(request, caller.team, job_id)
    if job.artifact is None or job.artifact_size is None:
        raise Problem("no-preview" if job.terminal else "not-ready")
    path = portal(request).blobs.path(job.artifact)
    media_type = await asyncio.to_thread(_media_type, path, job.artifact_size)
    etag = f'"{job.artifact}"'
    headers = {"ETag": etag, "Cache-Control": CACHE, "Content-Security-Policy": POLICY}
    if _matches(request.headers.get("if-none-match"), etag):
        return Response(status_code=304, headers=headers)
    _check_range(request, job.artifact_size, etag)
    return FileResponse(
        path,
        headers=headers,
        media_type=media_type,
        filename=f"{job.id}{'.png' if media_type == 'image/png' else '.bin'}",
        content_disposition_type="inline" if media_type == "image/png" else "attachment",
    )


def _media_type(path: Path, size: int) -> str:
    """Tell from its own first bytes what the file is.

    Raises:
        Problem: preview-missing, also when the file is not as long as the job says.

    """
    try:
        with path.open("rb") as file:
            head = file.read(len(PNG))
        if path.stat().st_size != size:
            raise Problem("preview-missing")
    except FileNotFoundError:
        raise Problem("preview-missing") from None
    except OSError as error:
        raise BlobStoreUnavailable(error.errno, "the preview cannot be read") from error
    return "image/png" if head == PNG else "application/octet-stream"


def _matches(header: str | None, etag: str) -> bool:
    if header is None:
        return False
    return header.strip() == "*" or etag in (one.strip().removeprefix("W/") for one in header.split(","))


def _check_range(request: Request, size: int, etag: str) -> None:
    """Refuse what cannot be satisfied, and drop what RFC 9110 says to ignore, before Starlette reads it."""
    header = request.headers.get("range")
    if header is None:
        return
    unit, _, ranges = header.partition("=")
    first, dash, last = ranges.strip().partition("-")
    if_range = request.headers.get("if-range")
    numbers = [n for n in (first, last) if n]
    usable = (
        request.method == "GET"
        and unit.strip().lower() == "bytes"
        and dash == "-"
        and bool(numbers)
        and all(n.isascii() and n.isdigit() and len(n) < 19 for n in numbers)  # noqa: PLR2004 -- 64 bits
        and not (first and last and int(last) < int(first))
        and if_range in {None, etag}
    )
    if not usable:
        _without(request, "range")
    elif (int(first) >= size) if first else (int(last) == 0):
        raise Problem("bad-range", headers={"Content-Range": f"bytes */{size}"})


def _without(request: Request, name: str) -> None:
    request.scope["headers"] = [(k, v) for k, v in request.scope["headers"] if k != name.encode()]
