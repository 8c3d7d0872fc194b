"""The paths of Blazar's API, and how it answers: with Blazar's statuses and its form of errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any, Final, get_type_hints

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute

from leasekit.core.errors import LeasekitError
from leasekit.gateway.blazar import hosts, leases
from leasekit.gateway.blazar.wire import LeaseBody, LeaseChange, bad, read
from leasekit.gateway.door import GatewayDoor
from leasekit.gateway.incoming import JSON, SAFE, caller_of, counted, read_body, source_of
from leasekit.gateway.problems import ProblemError, of_error
from leasekit.gateway.routing import NO_JSON, Call

TOKEN: Final = "x-auth-token"
NO_TOKEN: Final = "notused"
"""What keystoneauth shows as a token for the auth type `none`."""
PROJECT: Final = "x-project-id"
VERSION: Final = "openstack-api-version"
SERVICE: Final = "reservation"
SERVED: Final = "1.0"
STATUS: Final = {HTTPStatus.UNPROCESSABLE_ENTITY: HTTPStatus.BAD_REQUEST}
"""What Blazar says where the gateway says something else."""
Answer = Callable[..., Awaitable[Any]]
_encode: Final = msgspec.json.Encoder().encode


def blazar_routes(door: GatewayDoor, base: str) -> list[StarletteRoute]:
    """The paths, which begin with ``base``."""
    lease, host = f"{base}/v1/leases", f"{base}/v1/os-hosts"
    declared: list[tuple[str, str, HTTPStatus, str, Answer]] = [
        ("GET", lease, HTTPStatus.OK, "leases", leases.list_leases),
        ("POST", lease, HTTPStatus.CREATED, "lease", leases.create_lease),
        ("GET", f"{lease}/{{id}}", HTTPStatus.OK, "lease", leases.show_lease),
        ("PUT", f"{lease}/{{id}}", HTTPStatus.OK, "lease", leases.update_lease),
        ("DELETE", f"{lease}/{{id}}", HTTPStatus.NO_CONTENT, "", leases.delete_lease),
        ("GET", host, HTTPStatus.OK, "hosts", hosts.list_hosts),
        ("POST", host, HTTPStatus.CREATED, "host", hosts.create_host),
        ("GET", f"{host}/allocations", HTTPStatus.OK, "allocations", hosts.list_allocations),
        ("GET", f"{host}/properties", HTTPStatus.OK, "resource_properties", hosts.list_properties),
        ("PATCH", f"{host}/properties/{{name}}", HTTPStatus.OK, "resource_property", hosts.set_property),
        ("GET", f"{host}/{{id}}", HTTPStatus.OK, "host", hosts.show_host),
        ("PUT", f"{host}/{{id}}", HTTPStatus.OK, "host", hosts.update_host),
        ("DELETE", f"{host}/{{id}}", HTTPStatus.NO_CONTENT, "", hosts.delete_host),
        ("GET", f"{host}/{{id}}/allocation", HTTPStatus.OK, "allocation", hosts.show_allocation),
    ]
    made = []
    for method, path, status, key, run in declared:
        answer = partial(_answer, door, status, _taking(run, key))
        made.append(StarletteRoute(path, counted(door, f"/blazar{path[len(base) :]}", answer), methods=[method]))
    for path in ("", "/", "/versions"):
        made.append(StarletteRoute(f"{base}{path}", partial(_versions, base), methods=["GET"]))
    refuse = partial(_answer, door, HTTPStatus.OK, _not_served)
    made.append(StarletteRoute(f"{base}/v1/{{rest:path}}", refuse, methods=["GET", "POST", "PUT", "PATCH", "DELETE"]))
    return made


async def _versions(base: str, request: Request) -> Response:
    link = {"href": f"{str(request.base_url).rstrip('/')}{base}/v1", "rel": "self"}
    version = {"id": "v1.0", "status": "CURRENT", "links": [link], "min_version": SERVED, "max_version": SERVED}
    return _told(HTTPStatus.MULTIPLE_CHOICES, {"versions": [version]})


async def _answer(door: GatewayDoor, status: HTTPStatus, run: Answer, request: Request) -> Response:
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.scope["headers"]}
    if headers.get(TOKEN, NO_TOKEN) != NO_TOKEN:
        headers["authorization"] = f"Bearer {headers[TOKEN]}"
    try:
        _check_version(headers.get(VERSION, ""))
        call = Call(door, await caller_of(door, headers, source_of(request)), headers)
        found = await run(call, request)
    except ClientDisconnect:
        return Response(status_code=499)
    except LeasekitError as error:
        problem = of_error(error)
        code = STATUS.get(HTTPStatus(problem.status), problem.status)
        words = {"error_code": code, "error_message": problem.detail, "error_name": code}
        return _told(code, words, dict(error.headers) if isinstance(error, ProblemError) else {})
    return Response(status_code=status, headers=SAFE) if status == HTTPStatus.NO_CONTENT else _told(status, found)


def _told(status: int, body: Any, headers: Mapping[str, str] | None = None) -> Response:
    versioned = {"openstack-api-version": f"{SERVICE} {SERVED}", "vary": "OpenStack-API-Version"}
    return Response(
        _encode(body), status_code=status, media_type=JSON, headers={**SAFE, **versioned, **(headers or {})}
    )


def _check_version(header: str) -> None:
    """Raises :class:`ProblemError` for a version of the API that is not served."""
    for part in header.split(","):
        service, _, version = part.strip().partition(" ")
        if service.lower() == SERVICE and version.strip() not in (SERVED, "latest"):
            text = f"Version {version!r:.20} is not supported by the API. Minimum is {SERVED} and maximum is {SERVED}."
            raise ProblemError(HTTPStatus.NOT_ACCEPTABLE, text, code="bad_argument")


async def _body(request: Request) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(await read_body(request) or b"{}")
    except NO_JSON as error:
        raise bad(f"body: expected JSON: {error}") from None
    if not isinstance(found, dict):
        raise bad(f"body: found {found!r:.60}, expected an object")
    return found


def _taking(run: Answer, key: str) -> Answer:
    """What has ``run`` answer, under ``key``, with what its parameters name: the ``project``, the ``body``, the
    ``query``, parts of the path.
    """
    hints = get_type_hints(run)

    async def answer(call: Call, request: Request) -> Any:
        parts = request.path_params
        given = {
            "project": call.headers.get(PROJECT, ""),
            "query": request.query_params,
            "id_": parts.get("id"),
            **parts,
        }
        if kind := hints.get("body"):
            body = await _body(request)
            given["body"] = read(body, kind) if kind in (LeaseBody, LeaseChange) else body
        return {key: await run(call, **{name: given[name] for name in hints if name in given})}

    return answer


async def _not_served(call: Call, request: Request) -> Any:
    text = f"{request.method} {request.path_params['rest']:.80}: not served here, leases and os-hosts are"
    raise ProblemError(HTTPStatus.NOT_FOUND, text)
