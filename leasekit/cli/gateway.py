"""Gateways: running one beside actors, and ``leasekit token`` for who may call it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from leasekit.cli.options import DAEMON, Shown, argument, command, option
from leasekit.cli.output import listing, print_lines
from leasekit.cli.places import DeployPlace
from leasekit.core.time import Duration

if TYPE_CHECKING:
    from leasekit.config.deployment import Deployment
    from leasekit.config.gateway import GatewaySpec
    from leasekit.runtime.daemon import Service

GATEWAY: Final = "gateway"


def gateway_service(deployment: Deployment, spec: GatewaySpec) -> Service:
    """What a daemon runs for a gateway of a deployment."""
    from leasekit.gateway.serve import GatewayServer
    from leasekit.runtime.control import ControlRequest
    from leasekit.runtime.daemon import Service
    from leasekit.stores.memory import MemoryStore
    from leasekit.stores.sqlite import SqliteStore

    open_store = MemoryStore if spec.store is None else partial(SqliteStore, spec.store)
    server = GatewayServer(spec, deployment.actors.values(), open_store)

    async def create(asked: ControlRequest) -> Any:
        return await server.create_token(asked.arguments, asked.caller)

    async def list_(asked: ControlRequest) -> Any:
        return await server.list_tokens()

    async def revoke(asked: ControlRequest) -> Any:
        return await server.revoke_token(str(asked.arguments.get("id", "")))

    return Service(
        name=spec.name, role=spec.role, serve=server.serve, control=spec.control, state=deployment.state,
        describe=server.describe, log=spec.log, log_level=spec.log_level,
        metrics=spec.metrics, measure=server.measure,
        commands={"token.create": create, "token.list": list_, "token.revoke": revoke},
    )  # fmt: skip


@click.group()
def token() -> None:
    """Make and revoke the tokens by which programs call a gateway."""


_SHOWN: Final = listing(
    "id", "name", "caller", ("projects", lambda one: " ".join(map(":".join, one["projects"].items()))),
    ("offices", lambda one: " ".join(one["offices"])), "created", "expires", "used", empty="no tokens",
)  # fmt: skip


@command(token)
def create(
    place: DeployPlace = DAEMON,
    name: str = argument(),
    caller: str = option("Whose it is [yours]."),
    projects: Sequence[str] = option(
        "A project, and what may be done in it: viewer, user or manager (repeat it).", "--project", metavar="NAME:ROLE"
    ),
    offices: Sequence[str] = option(
        "What may be done in all of the deployment.", "--office", type=("operator", "auditor")
    ),
    span: Duration | None = option("How long it is good [90d].", "--for"),
) -> Shown:
    """Make a token called NAME. What it is is printed now, and never again: only its hash is kept.

    Example:
      leasekit token create ci --project guest:user --for 365d
      leasekit token create ops --office operator
    """
    given = {}
    for text in projects:
        project, colon, role = text.rpartition(":")
        if not colon:
            raise click.UsageError(f"--project: found {text!r}, expected NAME:ROLE, such as guest:user")
        given[project] = role
    if not given and not offices:
        raise click.UsageError("say what it allows: --project NAME:ROLE, or --office")
    length = {} if span is None else {"length": f"{span}ms"}
    asked = {"name": name, "caller": caller, "projects": given, "offices": list(offices), **length}
    made = place.command(GATEWAY, "token.create", **asked)
    return made, lambda _: print_lines([made["secret"]])


@command(token, name="list")
def list_tokens(place: DeployPlace = DAEMON) -> Shown:
    """List the tokens of a gateway, without what they are.

    Example:
      leasekit token list
    """
    return place.command(GATEWAY, "token.list"), _SHOWN


@command(token)
def revoke(place: DeployPlace = DAEMON, id_: str = argument("ID")) -> Shown:
    """Have a token be none any more, by its ID of `token list`.

    Example:
      leasekit token revoke 3f2a9c1d0b7e4f65
    """
    return place.command(GATEWAY, "token.revoke", id=id_), lambda _: print_lines([f"{id_}: revoked"])
