"""Templates of requests over HTTP: one's own, and those that all of a project see."""

from __future__ import annotations

import secrets
from datetime import date
from http import HTTPStatus
from typing import Final

from leasekit.client.shapes import LeaseTemplate, LeaseTemplateRequest, TemplateList
from leasekit.gateway.callers import MANAGER, USER, VIEWER
from leasekit.gateway.door import forbidden
from leasekit.gateway.leases import OfProject, wanted_lease
from leasekit.gateway.problems import ProblemError, not_found
from leasekit.gateway.routing import Call, route, unprocessable
from leasekit.gateway.series import check_recurs, recurrence

TEMPLATES_MAX: Final = 200
"""How many templates a project has."""


@route("GET", "/templates")
async def list_templates(call: Call, params: OfProject) -> TemplateList:
    """List one's own templates of a project, and those that all of it see."""
    return TemplateList(items=sorted(_seen(call, params.project), key=lambda one: (one.name, one.id)))


@route("GET", "/templates/{template}")
async def show_template(call: Call, template: str, params: OfProject) -> LeaseTemplate:
    """Show one template, by its id or its name: one's own of that name before one that all of the project see."""
    return _found(call, params.project, template)


@route("POST", "/templates", status=HTTPStatus.CREATED)
async def keep_template(call: Call, params: OfProject, body: LeaseTemplateRequest) -> LeaseTemplate:
    """Keep a request under a name, in the place of one's own template of that name."""
    door, project = call.door, call.door.project(call.caller, params.project, USER).name
    for name in ("start", "end", "deferrable_until"):
        if getattr(body.request, name) is not None:
            raise unprocessable(f"request.{name}: found an instant, a template is for any time")
    wanted_lease(body.request).request_properties()  # what is wrong with it is told now
    if body.days is not None:
        check_recurs(body.request)
        recurrence(body.days, date.max)
    theirs = door.templates.of(project)
    gone = [one.id for one in theirs if (one.caller, one.name) == (call.caller.name, body.name)]
    if len(theirs) - len(gone) >= TEMPLATES_MAX:
        raise ProblemError(HTTPStatus.CONFLICT, f"{project} has {TEMPLATES_MAX} templates already", code="too_many")
    made = LeaseTemplate(
        id=secrets.token_hex(8), project=project, caller=call.caller.name, name=body.name, shared=body.shared,
        request=body.request, days=body.days,
    )  # fmt: skip
    await door.commit(door.templates.put(made), *door.templates.drop(*gone), *call.keep(made))
    return made


@route("POST", "/templates/{template}/remove")
async def remove_template(call: Call, template: str, params: OfProject) -> LeaseTemplate:
    """Have there be no such template any more: one's own, or one that all see, as a manager."""
    found = _found(call, params.project, template)
    if found.caller != call.caller.name and not call.caller.may(found.project, MANAGER):
        raise forbidden(f"template {found.name} is {found.caller}'s: its maker, or a {MANAGER}, removes it")
    await call.door.commit(*call.door.templates.drop(found.id), *call.keep(found))
    return found


def _found(call: Call, project: str, named: str) -> LeaseTemplate:
    """The template of that id; else, of those of that name, the caller's own, or the only one. Raises
    :class:`ProblemError`.
    """
    kept = call.door.templates.get(named)
    if kept is not None and call.caller.may(kept.project, VIEWER) and kept in _seen(call, kept.project):
        return kept
    found = [one for one in _seen(call, project) if one.name == named]
    found = [one for one in found if one.caller == call.caller.name] or found
    if len(found) > 1:
        ids = ", ".join(f"{one.id} ({one.caller})" for one in found)
        raise unprocessable(f"template: found {named!r:.80}, of which there are several: expected one of {ids}")
    if not found:
        raise not_found("template", named)
    return found[0]


def _seen(call: Call, project: str) -> list[LeaseTemplate]:
    """The templates of a project that the caller may see. Raises :class:`ProblemError`."""
    name = call.door.project(call.caller, project, VIEWER).name
    return [one for one in call.door.templates.of(name) if one.shared or one.caller == call.caller.name]
