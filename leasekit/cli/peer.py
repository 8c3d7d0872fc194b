"""``leasekit peer``: whom an actor knows, and what each may do there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import click

from leasekit.cli.output import example, json_option, listing, report
from leasekit.cli.places import DeployPlace, daemon_options
from leasekit.cli.times import Count
from leasekit.core.errors import LeasekitError

ROLES = ("guest", "broker", "authority")
PERMISSIONS = ("request", "redeem", "delegate", "endorse", "administer")


PEERS: Final = listing(
    "peer", "role", ("key", "fingerprint"), ("may", lambda known: " ".join(known["may"])),
    ("open requests", "open_requests"), "address", ("known by", "origin"),
    empty="it knows nobody", right=("open requests",),
)  # fmt: skip


@click.group()
def peer() -> None:
    """Look after whom an actor knows."""


@peer.command("list", epilog=example("leasekit peer list --actor site"))
@daemon_options
@json_option
def list_(place: DeployPlace, as_json: bool) -> None:
    """List peers: their keys, what they may do, and who made them known."""
    peers = place.query("", "peers")
    report(peers, PEERS, as_json=as_json)


@peer.command(epilog=example("leasekit peer add lab --role guest --key keys/lab.pub --actor site"))
@click.argument("name")
@click.option("--role", type=click.Choice(ROLES), required=True, help="What it is.")
@click.option("--key", required=True, metavar="KEY", help="Its public key: 64 hex digits, or a .pub file.")
@click.option("--address", default="", metavar="ADDRESS", help="Where it is dialled; without, it dials this actor.")
@click.option("--may", multiple=True, type=click.Choice(PERMISSIONS), help="What it may do [what its role may].")
@click.option("--open-requests", type=Count(min=1), metavar="N", help="Its requests that may be open at once.")
@daemon_options
@json_option
def add(
    place: DeployPlace,
    name: str,
    role: str,
    key: str,
    address: str,
    may: tuple[str, ...],
    open_requests: int | None,
    as_json: bool,
) -> None:
    """Make a peer known, from now on and after restarts. The deploy file stays as it is."""
    from leasekit.config.keys import load_public

    arguments: dict[str, Any] = {"name": name, "role": role, "key": load_public(key).hex(), "address": address}
    if may:
        arguments["may"] = list(may)
    if open_requests is not None:
        arguments["open_requests"] = open_requests
    added = place.command("", "peer.add", **arguments)
    report(added, f"{name} is known; it may {', '.join(added['may']) or 'do nothing'}", as_json=as_json)


@peer.command(epilog=example("leasekit peer remove lab --actor site"))
@click.argument("name")
@daemon_options
@json_option
def remove(place: DeployPlace, name: str, as_json: bool) -> None:
    """Forget a peer: its connection is closed, and no broker brings it back. Leases that it has stay as they are."""
    removed = place.command("", "peer.remove", name=name)
    report(removed, f"{name} is not known any more", as_json=as_json)


@peer.command(epilog=example("leasekit peer succeed lab lab.succession --actor site"))
@click.argument("name")
@click.argument("statement", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False))
@daemon_options
@json_option
def succeed(place: DeployPlace, name: str, statement: Path, as_json: bool) -> None:
    """Know a peer by its next key: FILE is the succession that `leasekit keys rotate` made, signed by both keys.

    Until the instant that it names, the peer may still use tickets that its old key holds.
    """
    from leasekit.config.keys import load_succession

    text = load_succession(statement).encode().hex()
    done = place.command("", "peer.succeed", name=name, succession=text)
    report(done, f"{name} has the key {done['key']} from now on", as_json=as_json)


@peer.command(epilog=example("leasekit peer command site unit.disable unit=vm-3 --actor broker"))
@click.argument("name")
@click.argument("command")
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE]...")
@daemon_options
@json_option
def command(place: DeployPlace, name: str, command: str, arguments: tuple[str, ...], as_json: bool) -> None:
    """Have another actor carry out a command: it must allow this one to administer it."""
    given = {}
    for text in arguments:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise LeasekitError(f"argument: found {text!r}, expected KEY=VALUE")
        given[key] = value
    done = place.command("", "peer.command", peer=name, command=command, arguments=given)
    report(done, f"{name}: {json.dumps(done)}", as_json=as_json)
