"""Gateways: running one beside actors, and ``leasekit token`` and ``leasekit user`` for who may call it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from leasekit.cli.options import DAEMON, Shown, argument, command, option
from leasekit.cli.output import listing, printed
from leasekit.cli.places import DeployPlace
from leasekit.core.errors import LeasekitError
from leasekit.core.time import Duration, format_duration

if TYPE_CHECKING:
    from leasekit.config.deployment import Deployment
    from leasekit.config.gateway import GatewaySpec
    from leasekit.runtime.daemon import Service


def gateway_service(deployment: Deployment, spec: GatewaySpec) -> Service:
    """What a daemon runs for a gateway of a deployment."""
    from leasekit.cli.runs import open_runs
    from leasekit.gateway.serve import GatewayServer
    from leasekit.runtime.daemon import Service
    from leasekit.stores.memory import MemoryStore
    from leasekit.stores.sqlite import SqliteStore

    open_store = MemoryStore if spec.store is None else partial(SqliteStore, spec.store)
    server = GatewayServer(spec, deployment, open_store, open_runs)

    return Service(
        name=spec.name, table=spec.table, serve=server.serve, control=spec.control, state=deployment.state,
        describe=server.describe, measure=server.measure,
        commands={
            "api": lambda asked: server.answer(asked.arguments, asked.caller), "reload": lambda _: server.reload(),
        },
    )  # fmt: skip


@click.group()
def token() -> None:
    """Make and revoke the tokens by which programs call a gateway."""


_RIGHTS: Final[Any] = (
    ("projects", lambda one: " ".join(map(":".join, one["projects"].items()))),
    ("offices", lambda one: " ".join(one["offices"])),
)
_SHOWN: Final = listing("id", "name", "caller", *_RIGHTS, "created", "expires", "used", empty="no tokens")
_PROJECTS: Final[Any] = option(
    "A project, and what may be done in it: viewer, user or manager (repeat it).", "--project", metavar="NAME:ROLE"
)
_OFFICES: Final[Any] = option("What may be done in all of the deployment.", "--office", type=("operator", "auditor"))


def _rights(projects: Sequence[str], offices: Sequence[str]) -> Mapping[str, Any]:
    """What the options say is allowed, which is something. Raises ``UsageError``."""
    given = {}
    for text in projects:
        project, colon, role = text.rpartition(":")
        if not colon:
            raise click.UsageError(f"--project: found {text!r}, expected NAME:ROLE, such as guest:user")
        given[project] = role
    if not given and not offices:
        raise click.UsageError("say what it allows: --project NAME:ROLE, or --office")
    return {"projects": given, "offices": list(offices)}


@command(token)
def create(
    place: DeployPlace = DAEMON,
    name: str = argument(),
    caller: str = option("Whose it is [yours]."),
    projects: Sequence[str] = _PROJECTS,
    offices: Sequence[str] = _OFFICES,
    span: Duration | None = option("How long it is good [90d].", "--for"),
) -> Shown:
    """Make a token called NAME. What it is is printed now, and never again: only its hash is kept.

    Example:
      leasekit token create ci --project guest:user --for 365d
      leasekit token create ops --office operator
    """
    length = {} if span is None else {"length": format_duration(span)}
    made = place.api("POST", "/tokens", {"name": name, "caller": caller, **_rights(projects, offices), **length})
    return made, printed(made["secret"])


@command(token, name="list")
def list_tokens(place: DeployPlace = DAEMON) -> Shown:
    """List the tokens of a gateway, without what they are.

    Example:
      leasekit token list
    """
    return place.api("GET", "/tokens")["items"], _SHOWN


@command(token)
def revoke(place: DeployPlace = DAEMON, id_: str = argument("ID")) -> Shown:
    """Have a token be none any more, by its ID of `token list`.

    Example:
      leasekit token revoke 3f2a9c1d0b7e4f65
    """
    made = place.api("POST", "/tokens/{token}/revoke", token=id_)
    return made, printed(f"{id_}: revoked")


@click.group()
def user() -> None:
    """Make, change and remove the users who log in at a gateway by a password."""


_PASSWORD_FILE: Final[Any] = option("Take the password from the first line of this file [asked for].", metavar="PATH")


def _password(name: str, file: Path | None, *, new: bool = True) -> str:
    """The password, which is never an argument. Raises ``LeasekitError``."""
    from leasekit.config.keys import read_passphrase

    if file is not None:
        return read_passphrase(file).decode("utf-8", "surrogateescape")
    words = f"new password of {name}" if new else f"password of {name}"
    typed: str = click.prompt(words, hide_input=True, confirmation_prompt=new, err=True)
    return typed


@command(user)
def add(
    place: DeployPlace = DAEMON,
    name: str = argument(),
    projects: Sequence[str] = _PROJECTS,
    offices: Sequence[str] = _OFFICES,
    password_file: Path | None = _PASSWORD_FILE,
) -> Shown:
    """Make a user called NAME, who logs in by a password of at least 12 characters.

    Example:
      leasekit user add ada --project guest:user
      leasekit user add olga --office operator --password-file olga.txt
    """
    allowed = _rights(projects, offices)
    made = place.api("POST", "/users", {"name": name, "password": _password(name, password_file), **allowed})
    return made, printed(f"{name}: added")


@command(user)
def password(place: DeployPlace = DAEMON, name: str = argument(), password_file: Path | None = _PASSWORD_FILE) -> Shown:
    """Give a user another password. The user's sessions end.

    Example:
      leasekit user password ada
    """
    made = place.api("PATCH", "/users/{user}", {"password": _password(name, password_file)}, user=name)
    return made, printed(f"{name}: the password is another one")


@command(user)
def remove(place: DeployPlace = DAEMON, name: str = argument()) -> Shown:
    """Remove a user, whose sessions and tokens end.

    Example:
      leasekit user remove ada
    """
    return place.api("DELETE", "/users/{user}", user=name), printed(f"{name}: removed")


@command(user, name="list")
def list_users(place: DeployPlace = DAEMON) -> Shown:
    """List the users of a gateway.

    Example:
      leasekit user list
    """
    return place.api("GET", "/users")["items"], listing("name", *_RIGHTS, "created", empty="no users")


@command(None)
def login(
    url: str = option("The gateway.", metavar="URL", envvar="LEASEKIT_URL", required=True),
    name: str = option("A local user, who has a password.", "--user", metavar="NAME"),
    password_file: Path | None = _PASSWORD_FILE,
) -> Shown:
    """Log in at a gateway, for all commands with its --url from then on.

    Without --user, somebody agrees in a browser, at the provider that the gateway believes. The token is kept in
    leasekit/logins.json below XDG_STATE_HOME, for you alone; LEASEKIT_TOKEN comes before it.

    Example:
      leasekit login --url https://lab.example
      leasekit login --url https://lab.example --user ada
    """
    import httpx
    import msgspec

    from leasekit.client import ApiError, Client
    from leasekit.client.logins import LoginError, device_login, keep_token
    from leasekit.client.shapes import LoginWays, ProblemDetails, Token

    def ask(method: str, path: str, kind: type[Any], **more: Any) -> Any:
        answer = httpx.request(method, f"{url.rstrip('/')}/api/v1{path}", timeout=30, **more)
        if answer.is_error:
            raise LeasekitError(f"{url}: {msgspec.json.decode(answer.content, type=ProblemDetails).detail}")
        return msgspec.json.decode(answer.content, type=kind)

    def tell(address: str, code: str) -> None:
        click.echo(f"Agree at {address} (code {code})", err=True)

    try:
        if name:
            given = {"name": name, "password": _password(name, password_file, new=False)}
            token = ask("POST", "/sessions", Token, json=given).secret
        else:
            ways = ask("GET", "/login", LoginWays)
            if not ways.issuer:
                raise LeasekitError(f"{url}: it believes no OpenID Connect provider; say a local user by --user")
            token = device_login(ways.issuer, ways.client_id, ways.scopes, tell)
        file = keep_token(url, token)
        with Client(url, token) as client:
            who = client.me()
    except (LoginError, ApiError) as error:
        raise LeasekitError(str(error)) from None
    except (httpx.HTTPError, httpx.InvalidURL, msgspec.DecodeError) as error:
        raise LeasekitError(f"{url}: no gateway answers there: {error}") from None
    return {"caller": who.caller, "file": str(file)}, printed(f"{who.caller}: kept in {file}")
