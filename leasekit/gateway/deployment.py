"""The deployment over HTTP: its daemons, sites, units, delegations, peers, claims; what operators do to them; events.

What is looked at, and what is done by a command with arguments that name things, is all of one kind: a row of a table
says which query or command of which role that is. Its answer is described where the actor declares it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Any, Final

import attrs
import msgspec
import trio
from msgspec import Struct

from leasekit.client.shapes import ActorState, At, Role, TransitionPage
from leasekit.core import answers, commands
from leasekit.core.settings import written_types
from leasekit.gateway.actors import ActorAwayError, ActorConnection
from leasekit.gateway.callers import AUDITOR, OPERATOR, VIEWER
from leasekit.gateway.door import BROKER, GUEST, SITE, forbidden
from leasekit.gateway.events import transition
from leasekit.gateway.instants import converted, read_instants
from leasekit.gateway.leases import HistoryPage, OfProject
from leasekit.gateway.problems import ProblemError, not_found
from leasekit.gateway.routing import ROUTES, Call, Handler, Route, number_of, route, unprocessable, variables

COMMANDED: Final = "commanded"
LOOKED_WITHIN: Final = 1.0
"""How long an actor has to say that it is there, in seconds: a page says within two who is not."""


class Actors(Struct, kw_only=True):
    """The daemons of the deployment."""

    items: list[ActorState]


class Projects(Struct, kw_only=True):
    """The projects that somebody may look into, and what their role is in each, by which they may do things there."""

    items: list[str]
    roles: dict[str, Role]


@route("GET", "/actors")
async def list_actors(call: Call) -> Actors:
    """List the daemons of the deployment, and whether each is there: `away` is who says nothing for a second."""
    return await _looked_for(call, call.door.daemons.values())


@route("GET", "/sites")
async def list_sites(call: Call) -> Actors:
    """List the sites of the deployment, and whether each is there."""
    return await _looked_for(call, call.door.of_role(SITE))


@route("GET", "/brokers")
async def list_brokers(call: Call) -> Actors:
    """List the brokers of the deployment, and whether each is there."""
    return await _looked_for(call, call.door.of_role(BROKER))


async def _looked_for(call: Call, daemons: Iterable[ActorConnection]) -> Actors:
    """Which of some daemons the caller may know of, and whether each is there."""
    items: list[ActorState] = []

    async def look(item: ActorState, daemon: ActorConnection) -> None:
        try:
            with daemon.within(LOOKED_WITHIN):
                shell = (await daemon.query("status"))["shell"]
            item.state, item.problem = shell["state"], shell["problem"]
        except ActorAwayError as error:
            item.problem = str(error)

    async with trio.open_nursery() as nursery:
        for one in daemons:
            if one.role != GUEST or call.caller.sees_all or call.caller.may(one.name, VIEWER):
                items.append(ActorState(name=one.name, role=one.role, state="away"))
                nursery.start_soon(look, items[-1], one)
    return Actors(items=items)


@route("GET", "/projects")
async def list_projects(call: Call) -> Projects:
    """List the projects that one may look into: each is a guest of the deployment."""
    items = call.door.projects(call.caller)
    return Projects(items=items, roles={name: call.caller.role(name) for name in items})


class EventsOf(OfProject, kw_only=True):
    """``all``: of brokers and sites as well, which operators and auditors may see. ``calendar``: also that something
    has changed there, without what, as an event ``changed``: then the calendar may be another. ``heard``: what a page
    said when it was made; if something has happened since, an event ``missed`` says so.
    """

    all: bool = False
    calendar: bool = False
    heard: str = ""


@route("GET", "/events")
async def listen(call: Call, params: EventsOf) -> AsyncIterator[bytes]:
    """Hear what happens as it happens, as server-sent events; with ``Last-Event-ID`` from there on."""
    names, others = heard = _heard(call, params)
    knows = partial(call.door.knows, call.caller)

    def still() -> bool:
        with suppress(ProblemError):  # the project is there no more
            return knows() and heard == _heard(call, params)
        return False

    return call.door.hub.listen(names, call.headers.get("last-event-id", ""), others, still, params.heard, knows)


def _heard(call: Call, params: EventsOf) -> tuple[list[str], set[str]]:
    """The actors whose events somebody hears, and those of which only that something has changed. Raises
    :class:`ProblemError`.
    """
    if params.all:
        need_office(call, AUDITOR)
        names = list(call.door.actors)
    elif params.project:
        names = [call.door.project(call.caller, params.project, VIEWER).name]
    else:
        names = call.door.projects(call.caller)
    return names, {one.name for one in call.door.actors.values() if one.role != GUEST} if params.calendar else set()


class AuditPage(HistoryPage, kw_only=True):
    """Of which actor of the deployment; ``newest``: that first."""

    actor: str = ""
    newest: bool = False


@route("GET", "/audit")
async def audit(call: Call, params: AuditPage) -> TransitionPage:
    """List who commanded what, by which way, oldest first if it is not said: of an actor, or of a project."""
    actor = _actor(call, "" if params.actor else GUEST, params, VIEWER)
    at = number_of(params.cursor or "0")
    if at is None:
        raise unprocessable(f"cursor: found {params.cursor!r:.60}, expected what the page before gave as next")
    begin = {"before": at if params.cursor else commands.LINE_MAX} if params.newest else {"after": at}
    rows = await actor.request("log", COMMANDED, {**begin, "limit": params.limit})
    following = str(rows[-1]["seq"]) if len(rows) == params.limit else None
    return TransitionPage(items=[transition(actor.name, row) for row in rows], next=following)


def need_office(call: Call, office: str) -> None:
    """Raises :class:`ProblemError` for who holds no such office, or one above it."""
    if office not in call.caller.offices and OPERATOR not in call.caller.offices:
        raise forbidden(f"{call.caller.name} is no {office} of this deployment")


# -- what is one query or command ------------------------------------------------------------------------------------


class OfBroker(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which broker: not needed where there is one."""

    broker: str = ""


class OfSite(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which site: not needed where there is one."""

    site: str = ""


class UnitOperation(Struct, forbid_unknown_fields=True, kw_only=True):
    """What a unit's driver is to do with it, such as restart it; each driver's page says what it can."""

    operation: str
    arguments: dict[str, str] = {}


class OperatedUnit(Struct, kw_only=True):
    """What the driver says of what it has done."""

    done: dict[str, str]


class OfActor(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which actor of the deployment."""

    actor: str


OF: Final[dict[str, type[Struct]]] = {GUEST: OfProject, BROKER: OfBroker, SITE: OfSite, "": OfActor}


def _actor(call: Call, role: str, params: Any, need: str) -> ActorConnection:
    """The actor that ``params`` name, of which somebody may see, or do, what they ask for. Raises
    :class:`ProblemError`.
    """
    if role == GUEST:
        return call.door.project(call.caller, params.project, "user" if need == OPERATOR else need)
    need_office(call, AUDITOR if need == VIEWER else OPERATOR)
    if not role:
        if params.actor not in call.door.actors:
            raise unprocessable(f"actor: found {params.actor!r:.80}, there are {', '.join(call.door.actors)}")
        return call.door.actors[params.actor]
    return call.door.actor(params.broker if role == BROKER else params.site, role)


@cache
def body_of(kind: type, command: str, leave_out: tuple[str, ...]) -> type[Struct]:
    """The body of a ``command`` whose arguments are ``kind``: a field for each, but for those that the path says.
    Instants are text in it.
    """
    written, fields = written_types(kind), []
    for field in attrs.fields(attrs.resolve_types(kind)):
        if field.name in leave_out:
            continue
        if str(written[field.name]).startswith("Instant"):
            fields.append((field.name, At | None, None))
        elif (factory := getattr(field.default, "factory", None)) is not None:
            fields.append((field.name, field.type, msgspec.field(default_factory=factory)))
        else:
            fields.append((field.name, field.type, field.default))
    return msgspec.defstruct(
        "".join(map(str.capitalize, command.split("."))) + "Body",
        fields,
        kw_only=True,
        forbid_unknown_fields=True,
        omit_defaults=True,
    )


@route("GET", "/evidence/{evidence}")
async def show_evidence(call: Call, evidence: str, params: OfSite) -> answers.EvidenceDetails:
    """Show one piece of evidence, with the file that anybody can check offline."""
    found = await _actor(call, SITE, params, VIEWER).query("evidence", id=evidence)
    if not found:
        raise not_found("evidence", evidence)
    return converted(found[0], answers.EvidenceDetails)


@route("POST", "/units/{unit}/operate")
async def operate_unit(call: Call, unit: str, params: OfSite, body: UnitOperation) -> OperatedUnit:
    """Have a unit's driver do something with a unit that is up."""
    site = _actor(call, SITE, params, OPERATOR)
    asked = {"unit": unit, "operation": body.operation, "arguments": body.arguments}
    done = await site.command("unit.operate", asked, **call.signed)
    return OperatedUnit(done={name: str(value) for name, value in done.items()})


@route("POST", "/units/{unit}/probe")
async def probe_unit(call: Call, unit: str, params: OfSite) -> answers.ProbedUnit:
    """Have a unit's driver look at a unit that is up, now."""
    site = _actor(call, SITE, params, OPERATOR)
    return answers.ProbedUnit(**await site.command("unit.probe", {"unit": unit}, **call.signed))


_QUERIES: Final[Sequence[tuple[str, str, str, Any, str]]] = (
    (SITE, "/units", "units", list[answers.UnitDetails], "List a site's units: state, lease, trouble."),
    (SITE, "/sites/inventory", "inventory", list[answers.InventoryEntry], "List the units of a site's inventory."),
    (SITE, "/sites/leases", "leases", list[answers.SiteLeaseDetails], "List the leases at a site."),
    (SITE, "/sites/status", "status", answers.SiteStatus, "Show how a site is."),
    (SITE, "/sites/saved", "saved", list[answers.SavedUnitDetails], "List what is kept of suspended leases' units."),
    (SITE, "/maintenance", "maintenance", list[answers.WindowDetails], "List maintenance windows, and whom they hit."),
    (SITE, "/claims", "claims", list[answers.ClaimDetails], "List the claims that a site has seen: who gave what."),
    (SITE, "/evidence", "evidence", list[answers.EvidenceDetails], "List evidence of what somebody did wrong."),
    ("", "/delegations", "delegations", list[answers.DelegationDetails], "List what a site or a broker has given."),
    (BROKER, "/brokers/sources", "sources", list[answers.SourceDetails], "List what a broker holds, and what is free."),
    (BROKER, "/brokers/leases", "leases", list[answers.BrokerLeaseDetails], "List the leases at a broker."),
    (BROKER, "/brokers/status", "status", answers.BrokerStatus, "Show how a broker is."),
    (BROKER, "/brokers/holds", "holds", list[answers.HoldDetails], "List what a broker holds for topologies."),
    (GUEST, "/slices", "slices", list[answers.SliceDetails], "List the slices of a project."),
    (GUEST, "/topologies", "topologies", list[answers.TopologyDetails], "List the topologies of a project."),
    (GUEST, "/topologies/{topology}", "topology", answers.TopologyDetails, "Show one topology."),
    ("", "/peers", "peers", list[answers.PeerDetails], "List whom an actor knows."),
)
"""Of which role, the path, the query that answers it, the class of its answer, and what it does."""
_COMMANDS: Final[Sequence[tuple[str, str, str, type, Any, str]]] = (
    (SITE, "POST /units", "unit.add", commands.SetUnit, answers.InventoryEntry,
     "Have a unit in the inventory that the deploy file does not name."),
    (SITE, "PATCH /units/{unit}", "unit.set", commands.SetUnit, answers.InventoryEntry,
     "Say that a unit has other attributes, or a host more or less."),
    (SITE, "DELETE /units/{unit}", "unit.remove", commands.RemoveUnit, answers.InventoryEntry,
     "Have a unit in the inventory no more; it is gone when its leases are over."),
    (SITE, "POST /units/{unit}/reset", "unit.reset", commands.ResetUnit, answers.InventoryEntry,
     "Have a unit be as the deploy file says again."),
    (SITE, "POST /units/{unit}/disable", "unit.disable", commands.DisableUnit, answers.ServiceOfUnit,
     "Take a unit out of service."),
    (SITE, "POST /units/{unit}/enable", "unit.enable", commands.EnableUnit, answers.ServiceOfUnit,
     "Put a unit into service again."),
    (SITE, "POST /units/{unit}/move", "unit.move", commands.MoveUnit, answers.MovedUnit,
     "Give the lease of a unit another one."),
    (SITE, "POST /sites/leases/{lease}/evict", "lease.evict", commands.EvictLease, answers.EvictedLease,
     "End a lease of somebody's, with notice."),
    (BROKER, "POST /brokers/leases/{lease}/evict", "lease.evict", commands.EvictLease, answers.EvictedLease,
     "Refuse a request, or end a lease early."),
    (SITE, "POST /maintenance", "maintenance.add", commands.AddMaintenance, answers.WindowDetails,
     "Take units out of service over a window."),
    (SITE, "POST /maintenance/{window}/remove", "maintenance.remove", commands.RemoveMaintenance, answers.RemovedWindow,
     "Have there be no such window."),
    (GUEST, "POST /slices", "slice.create", commands.CreateSlice, answers.CreatedSlice, "Make a slice."),
    (GUEST, "POST /slices/{name}/close", "slice.close", commands.CloseSlice, answers.ClosedSlice,
     "Close all leases of a slice."),
    (GUEST, "POST /slices/{name}/key", "slice.key", commands.SetSliceKey, answers.SliceKeySet,
     "Have the users of a slice log in with other keys."),
    (GUEST, "POST /slices/{name}/notes", "slice.note", commands.NoteSlice, answers.NotedSlice,
     "Keep notes of programs with a slice; one that is empty is there no more."),
    ("", "POST /peers", "peer.add", commands.AddPeer, answers.AddedPeer, "Make a peer known."),
    ("", "POST /peers/{name}/remove", "peer.remove", commands.RemovePeer, answers.RemovedPeer, "Know a peer no more."),
    ("", "POST /peers/import", "peer.import", commands.ImportPeers, answers.ImportedPeers,
     "Make several peers known: all of them, or none."),
    ("", "POST /peers/{name}/succeed", "peer.succeed", commands.SucceedPeer, answers.SucceededPeer,
     "Believe the next key of a peer, which its last one has signed."),
    ("", "POST /peers/{peer}/command", "peer.command", commands.CommandPeer, dict[str, Any],
     "Have a peer carry out a command, which lets this actor's operator do so."),
    ("", "POST /delegations", "delegation.give", commands.GiveDelegation, answers.GivenChain,
     "Have a site or a broker give units to a broker: again, or more of them, or fewer, or until another instant."),
    ("", "POST /delegations/reclaim", "delegation.reclaim", commands.ReclaimDelegation, answers.ReclaimedDelegation,
     "Take a delegation back from its broker."),
    (BROKER, "POST /brokers/sources/release", "source.release", commands.ReleaseSource, answers.ReleasedDelegations,
     "Let go of what a broker holds of one that is gone."),
    (SITE, "POST /units/{unit}/fail", "unit.fail", commands.FailUnit, answers.ServiceOfUnit,
     "Say that a unit is down: its lease gets another."),
    (SITE, "POST /evidence/word", "evidence.word", commands.GiveWord, answers.VouchedEvidence,
     "Have a site say of evidence of over-delegation that its claims stand."),
)  # fmt: skip
"""Of which role, the method and path, the command, the classes of its arguments and its answer, and what it does."""


def _asked(role: str, query: str, answer: Any) -> Handler:
    """Shows what a query answers, whose arguments are words of the path."""

    async def run(call: Call, params: Any, **given: str) -> Any:
        part = call.of_actor if query == "leases" else {}
        return converted(await _actor(call, role, params, VIEWER).query(query, **given, **part), answer)

    return run


def _commanded(role: str, command: str, kind: type, answer: Any) -> Handler:
    """Carries a command out, whose arguments are words of the path and what the body says, where there is one."""

    async def run(call: Call, params: Any, body: Any = None, **given: str) -> Any:
        actor = _actor(call, role, params, OPERATOR)
        said = {} if body is None else read_instants(kind, msgspec.to_builtins(body))
        return converted(await actor.command(command, {**said, **given}, **call.signed), answer)

    return run


def _declare(at: str, run: Handler, name: str, words: str, role: str, answer: Any, kind: type | None = None) -> None:
    method, path = at.split()
    body = None if kind is None or method == "DELETE" else body_of(kind, name, tuple(variables(path)))
    name = f"{name.replace('.', '_')}_{path.split('/')[1]}"
    ROUTES.append(
        Route(method=method, path=path, name=name, words=words, run=run, params=OF[role], body=body, answer=answer)
    )


for _role, _path, _query, _answer, _words in _QUERIES:
    _declare(f"GET {_path}", _asked(_role, _query, _answer), _query, _words, _role, _answer)
for _role, _at, _command, _kind, _answer, _words in _COMMANDS:
    _declare(_at, _commanded(_role, _command, _kind, _answer), _command, _words, _role, _answer, _kind)
