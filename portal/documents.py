"""Documents: PUT /v1/documents streams bytes into the store and answers their digest."""

import asyncio
import base64
import binascii
import re

import structlog
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from db import reads
from portal.answers import as_json, told, with_headers
from portal.bodies import chunks
from portal.callers import Reader, Submitter
from portal.context import portal
from portal.problems import Problem
from portal.resources import Document, document_json
from runtime import metrics
from runtime.blobs import DIGEST, BlobWriter

router = APIRouter(prefix="/v1/documents", tags=["documents"])

#: Gather so much before a thread writes it: fewer turns between loop and disk, and little memory.
WRITE_BYTES = 256 << 10
# RFC 9530: a dictionary of byte sequences; the others in it are not ours to check.
_CONTENT_DIGEST = re.compile(r"(?:^|,)\s*sha-256=:([A-Za-z0-9+/=]{1,64}):")
RATES = with_headers("RateLimit", "RateLimit-Policy")
LINKS = {
    "get_document": {"operationId": "get_document", "parameters": {"digest": "$response.body#/document"}}
}


@router.put(
    "",
    status_code=201,
    response_model=Document,
    responses={
        201: {"description": "stored", "headers": RATES, "links": LINKS},
        200: {
            "model": Document,
            "description": "the team had put it before",
            "headers": RATES,
            "links": LINKS,
        },
        **told(
            "too-slow",
            "too-large",
            "unsupported-media-type",
            "digest-mismatch",
            "invalid-request",
            "storage-unavailable",
            "storage-full",
        ),
    },
    summary="Put a document",
    openapi_extra={
        "parameters": [
            {
                "name": "Content-Digest",
                "in": "header",
                "required": False,
                "description": "RFC 9530; the bytes are refused if they are others",
                "schema": {"type": "string", "pattern": "^sha-256=:[A-Za-z0-9+/]{43}=:$"},
            }
        ],
        "requestBody": {
            "required": True,
            "description": "the document itself, of any type; it is never executed",
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        },
    },
)
async def put_document(request: Request, caller: Submitter) -> Response:
    """Store the body under its SHA-256 for the team. Putting the same bytes again changes nothing."""
    found = portal(request)
    expected = _expected(request)
    with await asyncio.to_thread(found.blobs.writer) as writer:
        await _receive(request, writer, found.settings.max_document_bytes)
        if expected not in {None, writer.digest}:
            raise Problem("digest-mismatch")
        digest = await asyncio.to_thread(writer.commit)
        size = writer.size
    new = await found.database.run(lambda conn: reads.add_document(conn, caller.team, digest, size))
    structlog.contextvars.bind_contextvars(document=digest, size=size)
    if new:
        metrics.count("documents_put_total")
        metrics.count("documents_put_bytes_total", size)
    return as_json({"document": digest, "size": size}, 201 if new else 200)


async def _receive(request: Request, writer: BlobWriter, limit: int) -> None:
    gathered = bytearray()
    async for chunk in chunks(request, limit):
        gathered += chunk
        if len(gathered) >= WRITE_BYTES:
            await asyncio.to_thread(writer.write, bytes(gathered))
            gathered.clear()
    await asyncio.to_thread(writer.write, bytes(gathered))


def _expected(request: Request) -> str | None:
    """Return the digest that Content-Digest announces."""
    header = request.headers.get("content-digest")
    if header is None:
        return None
    found = _CONTENT_DIGEST.search(header)
    try:
        raw = base64.b64decode(found[1], validate=True) if found else b""
    except binascii.Error:
        raw = b""
    digest = f"sha256:{raw.hex()}"
    if DIGEST.fullmatch(digest) is None:
        raise Problem("invalid-request", "Content-Digest must hold sha-256=:<base64>: (RFC 9530).")
    return digest


@router.get(
    "/{digest}",
    response_model=Document,
    responses={200: {"headers": RATES}, **told("not-found")},
    summary="Ask whether the team has put a document",
)
async def get_document(request: Request, digest: str, caller: Reader) -> Response:
    """Answer what is known of the team's document; clients that resume need not upload it again."""
    row = None
    if DIGEST.fullmatch(digest) is not None:
        row = await portal(request).database.run(lambda conn: reads.document(conn, caller.team, digest))
    if row is None:
        raise Problem("not-found")
    return as_json(document_json(row))
