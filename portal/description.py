"""The description: OpenAPI as FastAPI makes it, with what is the same for all said once."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from portal import examples, heads
from portal.answers import PROBLEM_SCHEMA, told_by_the_door, with_headers
from portal.resources import BatchRequest, JobRequest

TEXT = """
Puts documents, accepts jobs, shows previews. Every request carries a team's bearer token.

**Idempotency.** `POST /v1/jobs` and `POST /v1/batches` need an `Idempotency-Key`: 1 to 255 visible ASCII
characters, compared byte for byte, belonging to the team. The same key with the same meaning (order of
keys, spaces, escapes, and naming a default make no difference) gives the same job with
`Idempotent-Replayed: true`; with another meaning or another route, 422. While the first request is being
decided the others wait up to 2 s, then get 409. A request that failed leaves its key free. A key is kept
as long as its job.

**Errors** are RFC 9457 problems; `GET /problems` lists them all, with what to do.

**JSON** is UTF-8 without BOM, at most 32 levels deep, without duplicate keys, U+0000, or numbers beyond
64 bits; integers are written as integers.
"""


def described(app: FastAPI) -> dict[str, Any]:
    """Return the description; it is made once."""
    if app.openapi_schema is None:
        schema = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        components = schema.setdefault("components", {}).setdefault("schemas", {})
        _, requests = models_json_schema(
            [(JobRequest, "validation"), (BatchRequest, "validation")],
            ref_template="#/components/schemas/{model}",
        )
        components |= requests["$defs"] | {"Problem": dict(PROBLEM_SCHEMA)}
        for name in ("HTTPValidationError", "ValidationError"):
            components.pop(name, None)
        for name, example in examples.MODELS.items():
            components[name]["example"] = example
        for operation in (o for item in schema["paths"].values() for o in item.values()):
            _complete(operation)
        heads.declare(schema["paths"])
        app.openapi_schema = schema
    return app.openapi_schema


def _complete(operation: dict[str, Any]) -> None:
    responses = operation["responses"]
    # FastAPI adds its own 422 where a route has parameters; here a wrong path is a 404.
    if "application/json" in responses.get("422", {}).get("content", {}):
        del responses["422"]
    for status, response in told_by_the_door().items():
        responses.setdefault(str(status), response)
    for response in responses.values():
        response["headers"] = response.get("headers", {}) | with_headers(
            "Cache-Control", "X-Content-Type-Options"
        )
        for content in response.get("content", {}).values():
            model = str(content.get("schema", {}).get("$ref", "")).rpartition("/")[2]
            if model in examples.MODELS and not {"example", "examples"} & content.keys():
                content["example"] = examples.MODELS[model]
