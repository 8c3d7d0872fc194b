"""Templates of requests over HTTP: one's own, and those that all of a project see."""

from __future__ import annotations

import secrets
from http import HTTPStatus
from typing import Final

import msgspec
from msgspec import Struct

from leasekit.client.shapes import LeaseTemplate, LeaseTemplateRequest
from leasekit.core.schema import Change
from leasekit.gateway.callers import MANAGER, USER, VIEWER
from leasekit.gateway.door import TEMPLATES, GatewayDoor
from leasekit.gateway.leases import OfProject, wanted_lease
from leasekit.gateway.problems import ProblemError, not_found
from leasekit.gateway.routing import Call, route, unprocessable

TEMPLATES_MAX: Final = 200
"""How many templates a project has."""


class TemplateList(Struct, kw_only=True):
    """Templates that somebody may see, by name."""

    items: list[LeaseTemplate]


@route("GET", "/templates")
async def list_templates(call: Call, params: OfProject) -> TemplateList:
    """List one's own templates of a project, and those that all of it see."""
    project = call.door.project(call.caller, params.project, VIEWER).name
    found = [one for one in _of_project(call.door, project) if one.shared or one.caller == call.caller.name]
    return TemplateList(items=sorted(found, key=lambda one: (one.name, one.id)))


@route("POST", "/templates", status=HTTPStatus.CREATED)
async def keep_template(call: Call, params: OfProject, body: LeaseTemplateRequest) -> LeaseTemplate:
    """Keep a request under a name, in the place of one's own template of that name."""
    door, project = call.door, call.door.project(call.caller, params.project, USER).name
    for name in ("start", "end", "deferrable_until"):
        if getattr(body.request, name) is not None:
            raise unprocessable(f"request.{name}: found an instant, a template is for any time")
    wanted_lease(body.request).request_properties()  # what is wrong with it is told now
    theirs = _of_project(door, project)
    gone = [one.id for one in theirs if (one.caller, one.name) == (call.caller.name, body.name)]
    if len(theirs) - len(gone) >= TEMPLATES_MAX:
        raise ProblemError(HTTPStatus.CONFLICT, f"{project} has {TEMPLATES_MAX} templates already", code="too_many")
    made = LeaseTemplate(
        id=secrets.token_hex(8), project=project, caller=call.caller.name, name=body.name, shared=body.shared,
        request=body.request,
    )  # fmt: skip
    row = (made.id, project, msgspec.json.encode(made))
    await door.commit(Change(TEMPLATES, made.id, row), *(Change(TEMPLATES, id_, None) for id_ in gone))
    for id_ in gone:
        door.templates.pop(id_, None)
    door.templates[made.id] = made
    return made


@route("POST", "/templates/{template}/remove")
async def remove_template(call: Call, template: str) -> LeaseTemplate:
    """Have there be no such template any more: one's own, or one that all see, as a manager."""
    found = call.door.templates.get(template)
    own = found is not None and found.caller == call.caller.name and call.caller.may(found.project, VIEWER)
    if found is None or not (own or (found.shared and call.caller.may(found.project, MANAGER))):
        raise not_found("template", template)
    await call.door.commit(Change(TEMPLATES, template, None))
    call.door.templates.pop(template, None)
    return found


def _of_project(door: GatewayDoor, project: str) -> list[LeaseTemplate]:
    return [one for one in door.templates.values() if one.project == project]
