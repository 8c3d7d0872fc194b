"""Rules by which people and programs are told what happens, and what was sent by them, over HTTP."""

from __future__ import annotations

import base64
import secrets
from http import HTTPStatus
from typing import Final, Literal

from msgspec import Struct

from leasekit.client.shapes import Delivery, NotificationRule, NotificationRuleRequest
from leasekit.gateway.callers import USER, VIEWER
from leasekit.gateway.instants import moment, span, told
from leasekit.gateway.leases import OfProject
from leasekit.gateway.notices import DEAD, WAITING, DeliveryRecord, Notification, RuleRecord
from leasekit.gateway.problems import ProblemError, not_found
from leasekit.gateway.routing import Call, route, unprocessable
from leasekit.gateway.sending import SECRET_PREFIX, SendingError, addresses, check_mail, check_url

RULES_MAX: Final = 100
"""How many rules a project may have."""


class RuleList(Struct, kw_only=True):
    """Rules that somebody may see."""

    items: list[NotificationRule]


class DeliveryList(Struct, kw_only=True):
    """Deliveries, in the order in which they are due."""

    items: list[Delivery]


class WhichDeliveries(OfProject, kw_only=True):
    """Those of a project, in a state."""

    state: Literal["", "waiting", "done", "dead"] = ""


class RemovedRule(Struct, kw_only=True):
    """A rule that there is no more."""

    id: str


@route("GET", "/notifications")
async def list_rules(call: Call, params: OfProject) -> RuleList:
    """List one's own rules of a project; a manager sees everybody's."""
    project = call.door.project(call.caller, params.project, VIEWER).name
    rules = call.door.notices.rules.seen(call.caller, project)
    return RuleList(items=[told(NotificationRule, one, secret="") for one in rules])


@route("POST", "/notifications", status=HTTPStatus.CREATED)
async def create_rule(call: Call, params: OfProject, body: NotificationRuleRequest) -> NotificationRule:
    """Have somebody told of what happens to the leases of a project, by webhook or mail."""
    project = call.door.project(call.caller, params.project, USER).name
    if bool(body.url) == bool(body.mail):
        raise unprocessable("url: expected either a url or a mail address")
    for name in ("ends", "starts"):
        for text in getattr(body, name):
            span(text, name)
    try:
        if body.url:
            await addresses(check_url(body.url), call.door.table.webhook_networks)
        else:
            check_mail(body.mail, call.door.table.mail)
    except SendingError as error:
        raise unprocessable(str(error)) from None
    if len(call.door.notices.rules.of(project)) >= RULES_MAX:
        raise ProblemError(HTTPStatus.CONFLICT, f"{project} has {RULES_MAX} rules already", code="too_many")
    secret = SECRET_PREFIX + base64.b64encode(secrets.token_bytes(32)).decode() if body.url else ""
    rule = RuleRecord(
        id=secrets.token_hex(8), project=project, caller=call.caller.name, events=body.events, url=body.url,
        mail=body.mail, type=body.type, ends=body.ends, starts=body.starts, secret=secret,
    )  # fmt: skip
    made = told(NotificationRule, rule)
    await call.door.commit(call.door.notices.rules.put(rule), *call.keep(made))
    return made


@route("POST", "/notifications/{rule}/remove")
async def remove_rule(call: Call, rule: str) -> RemovedRule:
    """Have there be no such rule, and nothing sent by it."""
    found, gone = call.door.notices.rules.theirs(call.caller, rule, "rule"), RemovedRule(id=rule)
    await call.door.commit(*call.door.notices.remove(found.id), *call.keep(gone))
    return gone


@route("POST", "/notifications/{rule}/test")
async def test_rule(call: Call, rule: str) -> Delivery:
    """Send something by a rule, to see whether it comes."""
    found, now = call.door.notices.rules.theirs(call.caller, rule, "rule"), call.door.clock()
    notice = Notification(kind="test", key=secrets.token_hex(8), project=found.project, at=now)
    changes = call.door.notices.tell(notice, now, found)
    sent = _delivery(call.door.notices.deliveries[changes[0].key])
    await call.door.commit(*changes, *call.keep(sent))
    call.door.told.set()
    return sent


@route("GET", "/notifications/deliveries")
async def list_deliveries(call: Call, params: WhichDeliveries) -> DeliveryList:
    """List what waits to be sent, was sent, or is dead: it was tried too often."""
    project = call.door.project(call.caller, params.project, VIEWER).name
    rules = {one.id for one in call.door.notices.rules.seen(call.caller, project)}
    found = [one for one in call.door.notices.deliveries.values() if one.rule in rules]
    items = sorted((one for one in found if params.state in ("", one.state)), key=lambda one: (one.at, one.id))
    return DeliveryList(items=[_delivery(one) for one in items])


@route("POST", "/notifications/deliveries/{delivery}/retry")
async def retry_delivery(call: Call, delivery: str) -> Delivery:
    """Try a dead one again, from the beginning."""
    found = call.door.notices.deliveries.get(delivery)
    if found is None or not call.door.notices.rules.sees(call.caller, found.rule):
        raise not_found("delivery", delivery)
    if found.state != DEAD:
        raise ProblemError(HTTPStatus.CONFLICT, f"delivery {delivery} is {found.state}", code="not_dead")
    change = call.door.notices.again(delivery, call.door.clock())
    again = _delivery(call.door.notices.deliveries[delivery])
    await call.door.commit(change, *call.keep(again))
    call.door.told.set()
    return again


def _delivery(one: DeliveryRecord) -> Delivery:
    next_ = moment(one.at) if one.state == WAITING else None
    return told(Delivery, one, event=one.notice.kind, lease=one.notice.lease, next=next_)
