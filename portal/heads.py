"""HEAD: whatever can be fetched with GET can be asked for its headers (RFC 9110, 9.3.2).

The same endpoints answer, so that status and headers are those of GET; the server leaves the body out.
An endpoint that streams for as long as its client stays looks at the method and ends at once.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute


def router(of: Iterable[APIRouter]) -> APIRouter:
    """Return a route of method HEAD for every route of `of` that answers GET."""
    found = APIRouter(include_in_schema=False)  # the description gets them from `declare`
    for route in (r for one in of for r in one.routes):
        if isinstance(route, APIRoute) and "GET" in (route.methods or ()):
            found.add_api_route(route.path, route.endpoint, methods=["HEAD"])
    return found


def declare(paths: Mapping[str, dict[str, Any]]) -> None:
    """Describe HEAD beside each GET of these OpenAPI path items, as `head_` and the name of the GET."""
    for item in paths.values():
        if (get := item.get("get")) is not None:
            item["head"] = {
                **get,
                "operationId": f"head_{get['operationId']}",
                "summary": f"{get['summary']}: the headers only",
            }
