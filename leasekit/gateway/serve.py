"""Serving a gateway: what it keeps open as long as it runs, and Hypercorn on trio."""

from __future__ import annotations

import logging
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import msgspec
import trio
from hypercorn.config import Config, Sockets
from hypercorn.middleware import ProxyFixMiddleware
from hypercorn.trio import serve as serve_http
from msgspec import Struct

from leasekit.config.deployment import ActorSpec, Deployment
from leasekit.config.gateway import GatewaySpec
from leasekit.config.reload import ChangedKey, reread_actors
from leasekit.core.errors import CommandError, LeasekitError
from leasekit.core.measures import Measuring
from leasekit.core.schema import Store
from leasekit.core.time import SECOND
from leasekit.gateway.actors import ActorConnection
from leasekit.gateway.app import at_known_hosts, make_app
from leasekit.gateway.approvals import carry_on
from leasekit.gateway.callers import OPERATOR, Caller
from leasekit.gateway.door import GUEST, GatewayDoor
from leasekit.gateway.events import STALLED
from leasekit.gateway.notifier import Notifier
from leasekit.gateway.routing import ROUTES, Call
from leasekit.gateway.runs import OpenedFolder, RunShelf
from leasekit.gateway.waits import watch

if TYPE_CHECKING:
    from leasekit.gateway.oidc import OpenIdKeys

GRACE: Final = 3.0
"""How long requests that run may go on when the gateway ends, in seconds."""
PRESENT_EVERY: Final = 4.0
"""How often guests are told that the gateway is there, in seconds; more often where holders may be silent for less."""
PRESENT_FOR: Final = 15_000
"""For how long they take it to be, in milliseconds."""
KEEP_ALIVE: Final = 75.0
"""How long a connection may be idle, in seconds."""

logger = logging.getLogger(__name__)


class BoundedConfig(Config):
    """Hypercorn's settings. Who takes nothing of what is sent for too long loses the connection: Hypercorn sends
    without a limit, and does not end before that is taken.
    """

    def create_sockets(self) -> Sockets:
        """Sockets whose connections the system ends by itself."""
        made = super().create_sockets()
        for sock in made.insecure_sockets:
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * STALLED))
        return made


class AskedByControl(Struct, forbid_unknown_fields=True, kw_only=True):
    """A request: ``path`` is that of a route, with its words in braces, which are ``named``."""

    method: str
    path: str
    named: dict[str, str] = {}
    query: dict[str, str] = {}
    body: Any = None


@attrs.define(eq=False)
class GatewayServer:
    """The gateway of ``spec``, over the control sockets of the actors of its ``deployment``. It opens its store when it
    begins to serve, folders of emulated runs when somebody looks at them.
    """

    spec: GatewaySpec
    deployment: Deployment
    open_store: Callable[[], Store]
    open_folder: Callable[[Path], OpenedFolder]
    door: GatewayDoor | None = attrs.field(init=False, default=None)
    _notifier: Notifier = attrs.field(init=False)
    _nursery: trio.Nursery = attrs.field(init=False)
    _reloading: trio.Lock = attrs.field(init=False, factory=trio.Lock)

    async def serve(self, stopping: trio.Event, *, task_status: trio.TaskStatus[str]) -> None:
        """Serve until ``stopping``. Raises ``LeasekitError`` where it can't listen."""
        store = await trio.to_thread.run_sync(self.open_store)
        try:
            door = GatewayDoor(
                self.spec.name, {}, self.spec.table, store, oidc=_openid_keys(self.spec),
                runs=None if self.spec.runs is None else RunShelf(self.spec.runs, self.open_folder),
            )  # fmt: skip
            self._notifier = Notifier(door)
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                await nursery.start(self._notifier.run)
                door.gateways = {
                    one.name: ActorConnection(one.name, one.table.role, one.control, nursery)
                    for one in self.deployment.gateways.values()
                }
                for spec in self.deployment.actors.values():
                    await nursery.start(self._attend, door, spec)
                nursery.start_soon(door.hub.beat)
                nursery.start_soon(watch, door)
                nursery.start_soon(carry_on, door)
                self.door = door
                await self._serve_http(door, stopping, task_status)
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(store.close)

    async def _attend(self, door: GatewayDoor, spec: ActorSpec, *, task_status: trio.TaskStatus[None]) -> None:
        """Serve an actor, too, as long as the deployment has it."""
        async with trio.open_nursery() as nursery:
            actor = ActorConnection(spec.name, spec.role, spec.control, nursery)
            door.actors = {**door.actors, actor.name: actor}
            door.hub.follow(actor, nursery)
            if actor.role == GUEST:
                nursery.start_soon(_say_present, actor)
                nursery.start_soon(self._notifier.follow, actor)
            task_status.started()

    async def reload(self) -> list[ChangedKey]:
        """Serve the actors that the deploy file has by now, and no others; what else it says otherwise of the gateway
        takes a restart. Raises ``LeasekitError`` with nothing changed.
        """
        door = self.door
        if door is None:
            raise CommandError("the gateway is starting")
        async with self._reloading:
            known = {one.name: one.role for one in door.actors.values()}
            now, changes = await trio.to_thread.run_sync(reread_actors, self.deployment, self.spec.name, known)
            for name, actor in door.actors.items():
                if name not in now or now[name].role != actor.role:
                    actor.leave()
            door.actors = {name: one for name, one in door.actors.items() if one.nursery is not None}
            for spec in now.values():
                if spec.name not in door.actors:
                    await self._nursery.start(self._attend, door, spec)
            door.actors = {name: door.actors[name] for name in now}
            door.hub.review()
        for change in changes:
            logger.info("reload: %s", change)
        return changes

    async def _serve_http(self, door: GatewayDoor, stopping: trio.Event, task_status: trio.TaskStatus[str]) -> None:
        config = BoundedConfig()
        config.bind = list(self.spec.listen)
        config.graceful_timeout, config.keep_alive_timeout = GRACE, KEEP_ALIVE
        config.keep_alive_max_requests = 2**31
        config.include_server_header = False
        config.accesslog, config.errorlog = None, logger
        config.umask = 0o177  # a Unix socket is its user's
        for where in self.spec.listen:
            _check_free(self.spec.name, where)

        async def ended() -> None:
            await stopping.wait()
            door.hub.close()

        app: Any = make_app(door, self.spec.table.base)
        if self.spec.table.proxies:
            app = ProxyFixMiddleware(app, trusted_hops=self.spec.table.proxies)
        if self.spec.table.without_login:
            app = at_known_hosts(app, self.spec.table.hosts)

        async def begun(task_status: trio.TaskStatus[list[str]]) -> None:
            await serve_http(app, config, shutdown_trigger=ended, task_status=task_status)

        async with trio.open_nursery() as nursery:
            bound = await nursery.start(begun)
            task_status.started(" ".join(bound))

    def describe(self) -> dict[str, Any]:
        """What it adds to its status."""
        tokens = 0 if self.door is None else len(self.door.tokens.all())
        return {"listen": list(self.spec.listen), "tokens": tokens, "store": str(self.spec.store or "")}

    async def measure(self, into: Measuring) -> None:
        """Tell its numbers."""
        if self.door is None:
            return
        name = {"gateway": self.spec.name}
        for (method, path, status), count in self.door.answered.counts.items():
            into.counter(
                "leasekit_http_requests", "Requests of the API that were answered.", count, **name, method=method,
                path=path, status=str(status),
            )  # fmt: skip
        words = "How long an answer takes, or the first line of a stream of events."
        into.histogram("leasekit_http_request_seconds", words, self.door.answered.times, **name)
        into.gauge("leasekit_event_listeners", "Who listens to events now.", self.door.hub.listeners, **name)
        for state, count in Counter(one.state for one in self.door.notices.deliveries.values()).items():
            into.gauge("leasekit_notifications", "What is to be sent, was, or is dead.", count, **name, state=state)
        for actor in self.door.actors.values():
            words = "Whether the gateway has a connection to the actor (1)."
            into.gauge("leasekit_gateway_connected", words, float(actor.connected), **name, actor=actor.name)

    async def answer(self, arguments: Mapping[str, Any], user: str) -> Any:
        """Answer a request of the API that comes by the control socket: who has that is an operator. Raises
        ``LeasekitError``.
        """
        if self.door is None:
            raise CommandError("the gateway is starting")
        try:
            asked = msgspec.convert(dict(arguments), AskedByControl)
        except msgspec.ValidationError as error:
            raise CommandError(f"arguments: {error}") from None
        route = next((one for one in ROUTES if (one.method, one.path) == (asked.method, asked.path)), None)
        if route is None or set(asked.named) != set(route.variables):
            raise CommandError(f"path: found {asked.method} {asked.path!r:.80}, there is none with such words")
        given = {**asked.named, **route.read_params(asked.query)}
        if route.method != "GET":
            given |= route.read_body(b"" if asked.body is None else msgspec.json.encode(asked.body))
        call = Call(self.door, Caller(user, "control socket", {}, frozenset({OPERATOR})), {})
        answer = await route.run(call, **given)
        if isinstance(answer, AsyncIterator):
            raise CommandError(f"path: found {asked.path}, which is a stream, and asked for by HTTP alone")
        return msgspec.to_builtins(answer)


async def _say_present(guest: ActorConnection) -> None:
    """Tell a guest, over and over, that its holders can be heard; one that is away is told when it is there again."""
    while True:
        try:
            apart = (await guest.command("gateway.present", {"length": PRESENT_FOR}))["apart"]
        except LeasekitError as error:
            logger.debug("%s does not hear that the gateway is there: %s", guest.name, error)
            apart = PRESENT_FOR
        await trio.sleep(min(PRESENT_EVERY, apart / SECOND / 3))


def _openid_keys(spec: GatewaySpec) -> OpenIdKeys | None:
    """Who knows the callers of a provider, if the gateway has one. Raises ``LeasekitError``."""
    if spec.table.oidc is None:
        return None
    try:
        from leasekit.gateway.oidc import OpenIdKeys
    except ImportError:
        raise LeasekitError(
            f"actor.{spec.name}.oidc: the package joserfc is needed: pip install 'leasekit[oidc]'"
        ) from None
    return OpenIdKeys(spec.table.oidc)


def _check_free(name: str, where: str) -> None:
    """Hypercorn would end with a traceback. Raises ``LeasekitError``."""
    if where.startswith("unix:"):
        return
    host, _, port = where.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError as error:
            raise LeasekitError(f"actor.{name}.listen: can't listen on http://{where}: {error.strerror}") from None
