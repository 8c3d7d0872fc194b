"""Worlds with sites, links between them and brokers that plan topologies, as deploy files; and requests for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from deployed_world import DeployedWorld

from leasekit.core.protocol.messages import Message
from leasekit.core.steps import Command, Outgoing
from leasekit.core.time import HOUR

HEAD = """
[emulation]
horizon = "2d"
"""


def site(name: str, units: int, broker: str = "b", type_: str = "vm", **properties: str) -> str:
    """A computer site that delegates all that it has."""
    said = ", ".join(f'"{key}" = "{value}"' for key, value in properties.items())
    return f"""
[actor.{name}]
role = "authority"
[[actor.{name}.inventory]]
type = "{type_}"
units = {units}
properties = {{ {said} }}
[[actor.{name}.delegation]]
broker = "{broker}"
type = "{type_}"
length = "2d"
"""


def network(name: str, broker: str, **links: tuple[str, str, int] | tuple[str, str, int, dict[str, str]]) -> str:
    """A network authority with a type for each link: its two ends, its units, and more properties."""
    text = f'[actor.{name}]\nrole = "authority"\n'
    for type_, (a, b, units, *more) in links.items():
        properties = {"link.a": a, "link.b": b, **(more[0] if more else {})}
        said = ", ".join(f'"{key}" = "{value}"' for key, value in properties.items())
        text += f"""
[[actor.{name}.inventory]]
type = "{type_}"
units = {units}
properties = {{ {said} }}
[[actor.{name}.delegation]]
broker = "{broker}"
type = "{type_}"
length = "2d"
"""
    return text


def broker(name: str = "b", *, settings: str = "", mapper: str = "", may: str = "") -> str:
    """A broker that plans."""
    return f"""
[actor.{name}]
role = "broker"
settings = {{ {settings} }}
{may}
[actor.{name}.mapper]
name = "coallocation"
{mapper}
"""


def guest(name: str = "g", broker_: str = "b") -> str:
    """A guest that asks."""
    return f'[actor.{name}]\nrole = "guest"\nsettings.default_broker = "{broker_}"\n'


STAR = (
    HEAD
    + site("N0", 8)
    + site("N1", 16)
    + site("N2", 4)
    + network("net", "b", n0x=("N0", "X", 10), n1x=("N1", "X", 10), n2x=("N2", "X", 5))
    + broker()
    + guest()
    + guest("h")
)
"""Three sites around an exchange point, one broker, two guests."""


def pair(units: int = 4, bw: float = 3, start: int = HOUR, duration: int = HOUR, **more: Any) -> dict[str, Any]:
    """A request for two sites and a link between them; ``link`` and ``options`` say more."""
    link = {"id": "l", "from": "r0", "to": "r1", "bw": bw, **more.pop("link", {})}
    sites = [{"id": "r0", "type": "vm", "units": units}, {"id": "r1", "type": "vm", "units": units}]
    when = {} if "est" in more else {"start": start}
    return {"sites": sites, "links": [link], "duration": duration, **when, **more}


class TopologyWorld(DeployedWorld):
    """A deployed world in which single messages can be lost or changed on their way."""

    lose: Callable[[str, str, Message], bool] = staticmethod(lambda sender, receiver, message: False)
    alter: Callable[[str, str, Message], Message] = staticmethod(lambda sender, receiver, message: message)

    def _send(self, sender: str, outgoing: Any) -> None:
        kept = [
            Outgoing(receiver, self.alter(sender, receiver, message))
            for receiver, message in outgoing
            if not self.lose(sender, receiver, message)
        ]
        super()._send(sender, kept)

    def begin_command(self, actor: str, name: str, /, **arguments: Any) -> int:
        """Have an actor carry out a command that takes time; its reply comes under the number in ``replies``."""
        self._command += 1
        self.feed(actor, [Command(self._command, name, arguments)])
        return self._command


def world(text: str, folder: Path, **more: Any) -> TopologyWorld:
    """The world of a deploy file's text, with all delegations taken."""
    return TopologyWorld(text, folder, **more)


def ask(world: DeployedWorld, request: dict[str, Any], guest: str = "g", **more: Any) -> str:
    """Have a guest ask for a topology; returns its id."""
    reply = world.command(guest, "topology.request", request=request, **more)
    assert not reply.error, reply.error
    return str(reply.result["topology"])


def show(world: DeployedWorld, topology: str, guest: str = "g") -> dict[str, Any]:
    """How a guest has a topology."""
    found: dict[str, Any] = world.query(guest, "topology", topology=topology)
    return found


def where(shown: dict[str, Any]) -> dict[str, str]:
    """The site, or link, of each part."""
    return {part["part"]: part["site"] if part["path"] == 0 and "." not in part["part"] else part["type"]
            for part in shown["parts"]}  # fmt: skip


def held(world: DeployedWorld, name: str = "b") -> list[dict[str, Any]]:
    """What a broker holds for plans that were not made leases of."""
    return [hold for hold in world.query(name, "holds") if hold["state"] != "used"]
