"""The OpenAPI 3.1 document of the API, made of the routes and of the classes that they name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, Final, get_args

import msgspec
from msgspec import Struct

from leasekit.client.shapes import ProblemDetails
from leasekit.core.settings import written_types
from leasekit.gateway.paging import PageOf, items_of
from leasekit.gateway.routing import BASE, PICTURES, Picture, Route

REF: Final = "#/components/schemas/{name}"
INSTANT: Final = {"type": ["string", "null"], "format": "date-time"}
TERM: Final = {
    "type": ["array", "null"], "items": {"type": "string", "format": "date-time"}, "minItems": 2, "maxItems": 2
}  # fmt: skip


def document(routes: Sequence[Route], base: str) -> dict[str, Any]:
    """All of it; paths begin with ``base``."""
    types: list[Any] = [ProblemDetails]
    for one in routes:
        types += [kind for kind in (one.params, one.body) if kind is not None]
        if not _media(one.answer):
            types.append(one.answer)
    schemas, components = msgspec.json.schema_components(types, ref_template=REF)
    found = dict(zip(map(repr, types), schemas, strict=True))
    for kind in _structs(types):
        _say_instants(kind, components.get(kind.__name__, {}))
    paths: dict[str, Any] = {}
    for one in routes:
        paths.setdefault(f"{BASE}{one.path}", {})[one.method.lower()] = _operation(one, found, components)
    return {
        "openapi": "3.1.0",
        "info": {"title": "leasekit", "version": version("leasekit"), "summary": "Leases of units, by projects"},
        "servers": [{"url": base or "/"}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}, {}],
    }


def _media(answer: Any) -> dict[str, Any]:
    """What an answer is that is no JSON."""
    if answer is Picture:
        return {kind: {"schema": {"type": "string", "format": "binary"}} for kind in PICTURES.values()}
    is_stream = getattr(answer, "__origin__", answer) is AsyncIterator
    return {"text/event-stream": {"schema": {"type": "string"}}} if is_stream else {}


def _operation(route: Route, found: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in route.variables
    ]
    if route.params is not None:
        shape = components[route.params.__name__]
        required = shape.get("required", ())
        parameters += [
            {"name": name, "in": "query", "required": name in required, "schema": schema}
            for name, schema in shape["properties"].items()
        ]
    if items_of(route) is not None:
        shape = msgspec.json.schema(PageOf)["$defs"]["PageOf"]["properties"]
        parameters += [{"name": name, "in": "query", "required": False, "schema": of} for name, of in shape.items()]
    if route.method != "GET":
        parameters.append({"name": "Idempotency-Key", "in": "header", "schema": {"type": "string", "maxLength": 200}})
        parameters.append({"name": "If-Match", "in": "header", "schema": {"type": "string"}})
    words = " ".join(route.words.split())
    problem = {
        "description": "why it came to nothing",
        "content": {"application/problem+json": {"schema": found[repr(ProblemDetails)]}},
    }
    answer = _media(route.answer) or {"application/json": {"schema": found[repr(route.answer)]}}
    operation: dict[str, Any] = {
        "operationId": route.name,
        "tags": [route.tag],
        "summary": words.partition(". ")[0].rstrip("."),
        "description": words,
        "parameters": parameters,
        "responses": {
            str(int(route.status)): {"description": HTTPStatus(route.status).phrase, "content": answer},
            "default": problem,
        },
    }
    if items_of(route) is not None:
        said = 'where the next page is, if there is one: <?...>; rel="next" (RFC 8288)'
        operation["responses"]["200"]["headers"] = {"Link": {"description": said, "schema": {"type": "string"}}}
    if route.is_open:
        operation["security"] = [{}]
    if route.body is not None:
        operation["requestBody"] = {
            "required": any(one.required for one in msgspec.structs.fields(route.body)),
            "content": {"application/json": {"schema": found[repr(route.body)]}},
        }
    return operation


def _structs(types: Sequence[Any]) -> list[type[Struct]]:
    """Every class that these types name, and those that their fields name."""
    found: dict[type[Struct], None] = {}
    todo = list(types)
    while todo:
        kind = todo.pop()
        if isinstance(kind, type) and issubclass(kind, Struct):
            if kind not in found:
                found[kind] = None
                todo += [field.type for field in msgspec.structs.fields(kind)]
        else:
            todo += get_args(kind)
    return list(found)


def _say_instants(kind: type[Struct], schema: dict[str, Any]) -> None:
    """In an answer of an actor instants are numbers, which HTTP has as text."""
    written, properties = written_types(kind), schema.get("properties", {})
    for name, encoded in zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True):
        text = str(written.get(name, ""))
        if text.startswith("Instant"):
            properties[encoded] = INSTANT
        elif text.startswith("Term"):
            properties[encoded] = TERM
