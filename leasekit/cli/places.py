"""How a command finds the daemon that it talks to: by a deploy file and an actor's name, or by its control socket."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar
from urllib.parse import quote, urlencode

from leasekit.core.errors import LeasekitError

if TYPE_CHECKING:
    from leasekit.config.deployment import ActorSpec, Deployment
    from leasekit.config.gateway import GatewaySpec
    from leasekit.config.sockets import ControlAddress, Door
    from leasekit.runtime.client import ControlClient

    AnyDoor: TypeAlias = ActorSpec | GatewaySpec | Door

GUEST: Final = "guest"
BROKER: Final = "broker"
SITE: Final = "authority"
GATEWAY: Final = "gateway"
DEFAULT_FILE: Final = "leasekit.toml"
FILE_VARIABLE: Final = "LEASEKIT_FILE"
URL_VARIABLE: Final = "LEASEKIT_URL"
TOKEN_VARIABLE: Final = "LEASEKIT_TOKEN"
URL_WITHIN: Final = 30.0
"""How long a gateway's answer is waited for, in seconds."""
URL_DONE_WITHIN: Final = 90.0
"""The same of a change: it may wait for a broker, which has a minute to answer."""
PLURALS: Final = {"guest": "guests", "broker": "brokers", "authority": "site authorities"}

A = TypeVar("A", "ActorSpec", "ActorSpec | GatewaySpec", "Door")


class Stored(NamedTuple):
    """An actor and the file of its store; None: that is in memory."""

    name: str
    role: str
    store: Path | None


class DeployPlace(NamedTuple):
    """What the options say of where the daemon is. ``deployment`` and ``connect`` raise ``LeasekitError``.

    A named tuple: to import attrs takes as long as all else that a command needs of its own.
    """

    file: Path | None = None
    state: Path | None = None
    actor: str = ""
    control: Path | None = None
    actors: tuple[str, ...] = ()
    """Those that were named beside the file; none: all of it."""
    url: str = ""

    @property
    def gateway(self) -> str:
        """The gateway through which daemons are reached: the option's, else, where nothing else says where they are,
        the environment's; empty: none.
        """
        return self.url or ("" if self.file or self.control else os.environ.get(URL_VARIABLE, ""))

    def deployment(self) -> Deployment:
        """The deploy file: the option's, the environment's, or the one in this folder."""
        from leasekit.config.load import load

        return load(self.deploy_file(), self.state)

    def deployment_with_actors(self) -> Deployment:
        """The same, where it has the actors that were named. Raises ``LeasekitError`` for one that it has not."""
        deployment = self.deployment()
        for name in self.actors:
            if name not in deployment.daemons:
                raise LeasekitError(f"{deployment.file}: no actor {name!r}; it has {', '.join(deployment.daemons)}")
        return deployment

    def doors(self, actors: Collection[str] = ()) -> Sequence[AnyDoor]:
        """Where these actors of the file (none: all) take commands, or the one daemon that was named by its socket
        (name and role are empty then). Where one of them runs the rest of the file may be wrong; else, as in
        ``deployment``, it raises ``LeasekitError``, and so for an actor that the file has not.
        """
        from leasekit.config.sockets import Door, doors

        if self.gateway:
            behind = self._behind()
            for name in actors:
                if name not in behind:
                    raise LeasekitError(f"{self.gateway}: no actor {name!r}; it has {_listed(behind.values())}")
            return [behind[name] for name in actors or behind]
        if self.control is not None:
            return [Door("", "", self.control)]
        file = self.deploy_file()
        found: Mapping[str, AnyDoor] = doors(file, self.state)
        if not any(is_there(door.control) for door in found.values()):
            found = self.deployment().daemons
        for name in actors:
            if name not in found:
                raise LeasekitError(f"{file}: no actor {name!r}; it has {', '.join(found)}")
        return [found[name] for name in actors or found]

    def _behind(self) -> dict[str, Door]:
        """The daemons behind the gateway. Raises ``LeasekitError``."""
        from leasekit.config.sockets import Door, RemoteDoor
        from leasekit.runtime.remote import daemons

        url, token = self.gateway, self._token()
        return {
            one["name"]: Door(one["name"], one["role"], RemoteDoor(url, token, one["name"], one["state"]))
            for one in daemons(url, token, URL_WITHIN)
        }

    def _token(self) -> str:
        """What is shown to the gateway."""
        return os.environ.get(TOKEN_VARIABLE, "") or _logged_in(self.gateway)

    def deploy_file(self) -> Path:
        """Which deploy file it is."""
        if self.url:
            raise LeasekitError("--url: found a gateway, this command needs the deploy file itself (--file)")
        if self.file is not None:
            return self.file
        named = os.environ.get(FILE_VARIABLE)
        if named:
            return Path(named)
        if Path(DEFAULT_FILE).exists():
            return Path(DEFAULT_FILE)
        raise LeasekitError(
            f"no deploy file: name one with --file or {FILE_VARIABLE}, or go where there is a {DEFAULT_FILE}"
        )

    def spec(self, role: str) -> ActorSpec:
        """The actor meant: the one that was named, or the only one of this role."""
        deployment = self.deployment()
        return self._meant(deployment.file, deployment.actors, role, or_only=False)

    def stored(self, role: str) -> Stored:
        """The actor meant, and its store; of one that was named by its control socket its daemon says it."""
        if self.control is None and not self.gateway:
            spec = self.spec(role)
            return Stored(spec.name, spec.role, spec.store)
        found = self.query(role, "status")
        return Stored(found["name"], found["role"], Path(found["store"]) if found["store"] else None)

    def socket(self, role: str, *, or_only: bool = False) -> ControlAddress:
        """The control socket of the daemon meant; with ``or_only`` also of one of another role that is alone in its
        file. Where a daemon has made it, the rest of the deploy file is not looked at: to check all of it takes longer
        than most commands do.
        """
        from leasekit.config.sockets import doors

        if self.gateway:
            return self._meant(self.gateway, self._behind(), role, or_only).control
        if self.control is not None:
            return self.control
        with suppress(LeasekitError):
            file = self.deploy_file()
            control = self._meant(file, doors(file, self.state), role, or_only).control
            if is_there(control):
                return control
        deployment = self.deployment()
        return self._meant(deployment.file, deployment.daemons, role, or_only).control

    def _meant(self, file: Path | str, actors: Mapping[str, A], role: str, or_only: bool) -> A:
        if self.actor:
            if self.actor not in actors:
                raise LeasekitError(f"{file}: no actor {self.actor!r}; it has {_listed(actors.values())}")
            return actors[self.actor]
        fitting = [actor for actor in actors.values() if actor.role == role]
        if not fitting and or_only and len(actors) == 1:
            fitting = list(actors.values())
        if not fitting:
            raise LeasekitError(f"{file}: no {role} in it; it has {_listed(actors.values())}")
        if len(fitting) > 1:
            names = ", ".join(actor.name for actor in fitting)
            raise LeasekitError(f"{file} has {len(fitting)} {PLURALS[role]}: {names}; say which with --actor")
        return fitting[0]

    def connect(self, role: str, *, or_only: bool = False) -> ControlClient:
        """A connection to the daemon of the actor meant."""
        from leasekit.runtime.client import ControlClient

        return ControlClient(self.socket(role, or_only=or_only))

    def query(self, role: str, name: str, /, **arguments: Any) -> Any:
        """What the daemon of the actor meant answers to one query; without a role as :meth:`connect_any` says."""
        with self.connect(role) if role else self.connect_any() as client:
            return client.query(name, **arguments)

    def command(self, role: str, name: str, /, **arguments: Any) -> Any:
        """What the daemon of the actor meant answers to one command."""
        with self.connect(role) if role else self.connect_any() as client:
            return client.request("command", name, arguments)

    def api(self, method: str, path: str, body: Any = None, /, **words: str) -> Any:
        """What a gateway answers to a request of its API. Words that ``path`` names in braces stand there, others in
        the query, unless they are empty. By the gateway's control socket one asks as an operator. Raises
        ``LeasekitError``.
        """
        query = {name: word for name, word in words.items() if word and f"{{{name}}}" not in path}
        named = {name: word for name, word in words.items() if f"{{{name}}}" in path}
        if not self.gateway:
            return self.command(GATEWAY, "api", method=method, path=path, named=named, query=query, body=body)
        from leasekit.runtime.remote import ask

        asked = path.format_map({name: quote(word, safe="") for name, word in named.items()})
        asked += f"?{urlencode(query)}" if query else ""
        return ask(self.gateway, self._token(), method, asked, body, URL_WITHIN if method == "GET" else URL_DONE_WITHIN)

    def connect_any(self) -> ControlClient:
        """A connection to the daemon that was named, of whatever role, or to the only one of the file."""
        if self.control is None and not self.actor:
            actors = self.doors()
            if len(actors) != 1:
                where = self.gateway or self.deploy_file()
                raise LeasekitError(f"{where} has {_listed(actors)}; say which with --actor")
        return self.connect("", or_only=True)


def _logged_in(url: str) -> str:
    """The token of the last login at a gateway. Who shows another one does not wait for the client's import."""
    from leasekit.client.logins import kept_token

    return kept_token(url)


def is_there(control: ControlAddress) -> bool:
    """Whether a daemon has made its control socket; False as well where the path is none that a file can have."""
    return isinstance(control, tuple) or os.path.exists(control)  # noqa: PTH110


def _listed(actors: Iterable[AnyDoor]) -> str:
    return ", ".join(f"{actor.name} ({actor.role})" for actor in actors) or "none"
