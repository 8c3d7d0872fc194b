"""``leasekit ticket`` and ``leasekit evidence``: what a signed file says, and whether it is true; without a daemon."""

from __future__ import annotations

import base64
import binascii
import os
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, Final

import click

from leasekit.cli.options import TERM, Count, Shown, argument, command, now, option, to_second
from leasekit.cli.output import classes_of, listing, note, print_fields
from leasekit.cli.places import FILE_VARIABLE, GUEST, DeployPlace, Stored
from leasekit.core.answers import describe_counts, plain
from leasekit.core.claims.claim import DEPTH_DEFAULT, DEPTH_MAX, Claim, Ticket, TicketVerifier, decode_ticket
from leasekit.core.claims.evidence import (
    EVIDENCE_MAX,
    OVERDELEGATION,
    Evidence,
    Verdict,
    decode_evidence,
    in_words,
    verify_evidence,
)
from leasekit.core.claims.signed import ED25519, TRUNCATION, Statement, decode_statement, fingerprint
from leasekit.core.errors import LeasekitError, TicketError
from leasekit.core.reasons import with_article
from leasekit.core.time import Instant

FILE_MAX: Final = 64 * 1024


def name_words(name: str, short: str) -> str:
    """As :func:`key_words`, of a key's short form."""
    return f"{name} ({short})" if name else short


def key_column(field: str) -> Callable[[Mapping[str, Any]], str]:
    """The cell of a table that shows whose a key of a row is."""
    return lambda row: name_words(row[f"{field}_name"], row[f"{field}_fingerprint"])


DEGREE: Final = (">degree", lambda claim: f"{claim['degree'] / 1000:g}")
CLAIM: Final = ("claim", lambda claim: claim["claim"][:16])
CHAIN: Final = listing(
    ">#", ("issuer", key_column("issuer")), ("holder", key_column("holder")), "type", ">units", ("classes", classes_of),
    *TERM, DEGREE, ("signature", lambda claim: "ok" if claim["signature_ok"] else "BAD"), CLAIM,
)  # fmt: skip


@click.group()
def ticket() -> None:
    """Look at tickets."""


@command(ticket)
def show(
    place: DeployPlace,
    source: str = argument("[FILE|-]", default=""),
    lease: str = option("The ticket of this lease of a guest, from its store.", metavar="LEASE"),
    save: Path | None = option("Write the ticket to a file as well.", metavar="FILE"),
) -> Shown:
    """Show the chain of claims in a ticket, from the site's to the holder's own, and check it.

    The ticket is read from FILE (or - for standard input: as it travels, in hex, or in base64) or is that of a --lease.
    Exits with 1 if a signature or the chain is wrong. A ticket that is over, or given back, is still true: only
    its site knows whether it was used.

    Example:
      leasekit ticket show --lease web
      leasekit ticket show web.ticket --json
    """
    if bool(source) == bool(lease):
        raise click.UsageError("give a FILE, - or --lease")
    data = _of_lease(place, lease) if lease else _ticket_bytes(source)
    found = _decoded(data, f"lease {lease}" if lease else source)
    if save is not None:
        save.write_bytes(data)
    names = known_names(place)
    problem = verify(found)
    described = describe(found, names, problem, now())
    verdict = f"the chain is wrong: {problem}" if problem else f"the chain is sound; the ticket {described['time']}"
    chain = [{"#": index, **claim} for index, claim in enumerate(described["chain"])]
    return described, (lambda _: CHAIN(chain), verdict), 1 if problem else 0


@command(ticket, name="verify")
def verify_(
    source: str = argument("FILE|-"),
    site: str = option("The site it must be of: 64 hex digits, or a .pub file.", metavar="KEY"),
    holder: str = option("The key that must hold it.", metavar="KEY"),
    at: Instant | None = option("When it must not be over yet (default: any time).", metavar="TIME"),
    depth: int = option("The most claims in it.", type=Count(1, DEPTH_MAX), shown=DEPTH_DEFAULT),
) -> Shown:
    """Check a ticket offline, as its site would: every signature, the root's own too, and every rule of the chain.

    Exits with 1, and says which check failed, if the ticket is not to be believed. Without --site any site's will do.
    What only the site knows is not checked: whether the ticket was given back, redeemed, or is one of too many.

    Example:
      leasekit ticket verify web.ticket
      leasekit ticket verify web.ticket --site keys/north.pub --json
    """
    root, held_by = public_key("--site", site), public_key("--holder", holder)
    reason = problem = ""
    found: Ticket | None = None
    try:
        found = _decoded(_ticket_bytes(source), source)
        leaf = found.leaf
        TicketVerifier(ED25519, depth_max=depth).check(
            found, root=root, holder=held_by or leaf.holder, now=leaf.term.start if at is None else at, skew=0
        )
    except TicketError as error:
        reason, problem = error.code, str(error)
    plain = _short(found) if found else {}
    answer = {"ok": not reason, "reason": reason, "problem": problem, **plain}
    if reason:
        return answer, f"not to be believed ({reason}): {problem}", 1

    def told(_: object) -> None:
        print_fields([("ticket", "ok"), *((name, value) for name, value in plain.items() if name != "term")])
        print_fields(zip(("from", "until"), map(to_second, plain["term"]), strict=True))

    return answer, told


def _short(found: Ticket) -> dict[str, Any]:
    leaf = found.leaf
    return {
        "claim": leaf.id,
        "site": found.root.issuer.hex(),
        "issuer": leaf.issuer.hex(),
        "holder": leaf.holder.hex(),
        "type": leaf.type,
        "units": leaf.units,
        "term": list(leaf.term),
        "depth": len(found.chain),
    }


def public_key(option: str, text: str) -> bytes | None:
    """The key that an option's text is or names; None if it is empty. Raises ``click.BadParameter``."""
    from leasekit.config.keys import KeyFileError, load_public

    try:
        return load_public(text) if text else None
    except KeyFileError as error:
        raise click.BadParameter(str(error), param_hint=option) from error


def verify(found: Ticket) -> str:
    """What is wrong with a ticket's chain and signatures, whoever holds it and whatever the time; empty if nothing."""
    leaf = found.leaf
    try:
        TicketVerifier(ED25519, depth_max=DEPTH_MAX).check(
            found, root=None, holder=leaf.holder, now=leaf.term.start, skew=0
        )
    except TicketError as error:
        return str(error)
    return ""


def describe(found: Ticket, names: Mapping[bytes, str], problem: str, instant: Instant) -> dict[str, Any]:
    """A ticket as plain data; ``names`` knows some keys."""
    term = found.leaf.term
    when = "is for later" if instant < term.start else "is of now" if instant < term.end else "is over"
    return {
        "ok": not problem,
        "problem": problem,
        "time": when,
        "site": names.get(found.root.issuer, fingerprint(found.root.issuer)),
        "chain": [_claim(claim, names) for claim in found.chain],
    }


def _claim(claim: Claim, names: Mapping[bytes, str]) -> dict[str, Any]:
    return {
        "claim": claim.id,
        **_key("issuer", claim.issuer, names),
        **_key("holder", claim.holder, names),
        "type": claim.type,
        "units": claim.units,
        "term": list(claim.term),
        "serial": claim.serial,
        "degree": claim.degree,
        "classes": plain(describe_counts(claim.classes)),
        "constraints": dict(claim.constraints),
        "parent": claim.parent,
        "signature_ok": ED25519.verify(claim.issuer, claim.signature, claim.body),
    }


def _key(field: str, key: bytes, names: Mapping[bytes, str]) -> dict[str, Any]:
    """A key, its short form, and whose it is, where there is one."""
    return {
        field: key,
        f"{field}_fingerprint": fingerprint(key) if key else "",
        f"{field}_name": names.get(key, ""),
    }


def _read(source: str | Path, most: int, what: str) -> bytes:
    """A file's bytes, or those of standard input. Raises ``LeasekitError`` for more than ``what`` can have."""
    with nullcontext(sys.stdin.buffer) if source == "-" else Path(source).open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise LeasekitError(f"{source}: found more than {most} bytes, which no {what} has")
    return data


def _ticket_bytes(source: str) -> bytes:
    return plain_bytes(_read(source, FILE_MAX, "ticket"))


def _decoded(data: bytes, source: str) -> Ticket:
    """The ticket in ``data``, which comes from ``source``. Raises ``TicketError``."""
    try:
        return decode_ticket(data)
    except TicketError as error:
        found = str(error) if data else "it is empty"
        raise TicketError(
            error.code, f"{source}: expected a ticket as it travels, in hex, or in base64: {found}"
        ) from error


def plain_bytes(data: bytes) -> bytes:
    """The bytes of a ticket or statement that may have been written as text: in hex or in base64."""
    text = b"".join(data.split())
    try:
        return bytes.fromhex(text.decode("ascii"))
    except ValueError:
        pass  # not hex, which is the stricter one
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return data


def _of_lease(place: DeployPlace, name: str) -> bytes:
    """The ticket that a guest's lease holds, by its store, which outlives the daemon and remembers old leases."""
    from leasekit.core.leases.records import GuestLease

    spec = place.stored(GUEST)
    if spec.role != GUEST:
        raise LeasekitError(f"{spec.name} is {with_article(spec.role)}: only guests hold the tickets of leases")
    for row in stored_rows(spec, "leases"):
        record = GuestLease.from_row(row)
        if name in (record.id, record.name, f"{record.slice}/{record.name}"):
            if record.approved is None:
                raise LeasekitError(f"lease {record.id} is {record.state} and has no ticket")
            return record.approved.ticket
    raise LeasekitError(f"no lease {name!r} in the store of {spec.name}")


def stored_rows(spec: Stored, table: str) -> list[tuple[Any, ...]]:
    """The rows of an archived table in an actor's store, whether its daemon runs or not: live ones first, then the
    newest.
    """
    if spec.store is None:
        raise LeasekitError(f"the store of {spec.name} is in its daemon's memory: there is no file to read")
    if not spec.store.exists():
        raise LeasekitError(f"no store at {spec.store}: {spec.name} was never started")
    from leasekit.stores.sqlite import read_rows

    return read_rows(spec.store, table, "live DESC, rowid DESC")


def key_words(key: bytes, names: Mapping[bytes, str]) -> str:
    """A key for people, everywhere in one form: its short form, and whose it is, where that is known."""
    return name_words(names.get(key, ""), fingerprint(key))


def known_names(place: DeployPlace) -> Mapping[bytes, str]:
    """The names of keys, as far as a deploy file is at hand and its public keys are there; by a gateway those of the
    actors behind it that one may look into, and of their peers.

    Raises ``LeasekitError`` for a deploy file that was named, and can't be read, where no control socket was.
    """
    from leasekit.config.keys import KeyFileError, load_public, public_path

    if place.gateway:
        return _names_behind(place)
    try:
        deployment = place.deployment()
    except LeasekitError:
        if place.control is None and (place.file is not None or os.environ.get(FILE_VARIABLE)):
            raise
        return {}
    names: dict[bytes, str] = {}
    keys = {actor.name: str(public_path(actor.key)) for actor in deployment.actors.values()}
    keys |= {peer.name: peer.key for peer in deployment.peers.values()}
    for name, key in keys.items():
        try:
            names[load_public(key)] = name
        except KeyFileError:
            continue  # shown by its fingerprint
    return names


def _names_behind(place: DeployPlace) -> Mapping[bytes, str]:
    from leasekit.runtime.client import ControlClient

    names: dict[str, str] = {}
    for door in place.doors():
        with suppress(LeasekitError), ControlClient(door.control) as client:  # away, or not for this caller
            names |= {peer["key"]: peer["peer"] for peer in client.query("peers")}
            names[client.query("status")["key"]] = door.name
    return {bytes.fromhex(key): name for key, name in names.items()}


EXIT_OPEN: Final = 3
"""Exit status: what the evidence says is signed, and may have an innocent reason that only its site can rule out."""
CLAIMS: Final = listing(
    "",
    ("issuer", key_column("issuer")),
    ("holder", key_column("holder")),
    "type",
    ">units",
    ("classes", classes_of),
    DEGREE,
    ("from", lambda claim: in_words(claim["term"][0])),
    ("until", lambda claim: in_words(claim["term"][1])),
    CLAIM,
    empty="no claims",
)
STATEMENTS: Final = listing(
    ("", "kind"),
    ("signer", key_column("signer")),
    ("about", lambda one: one["subject"].hex()[:16]),
    ("at", lambda one: in_words(one["at"])),
    ("says", "detail"),
)
STATEMENTS_MAX: Final = 16 * 1024 * 1024
HEX: Final = re.compile(rb"\s*[0-9a-f]{128,}\s*")

SOURCE: Any = argument("FILE")


@click.group()
def evidence() -> None:
    """Look at evidence of what somebody did wrong, and check it."""


@command(evidence, name="verify")
def verify_evidence_file(
    place: DeployPlace,
    source: Path = SOURCE,
    against: tuple[Path, ...] = option(
        "Signed statements that the accused brings: receipts (`leasekit broker receipts --out`), contracts.",
        metavar="STATEMENT",
    ),
    site: str = option(
        "The site's key, whose word and receipts count, and whose ticket it must be about: 64 hex digits, or a .pub "
        "file [the site that the claims begin with].",
        metavar="KEY",
    ),
) -> Shown:
    """Check evidence offline: who did what, by what is signed alone.

    Exits with 0 if it is proven, with 3 if it is open (it may have an innocent reason, which the site's word would rule
    out: `leasekit site word`), and with 1, saying why, if it proves nothing. Nothing that FILE says in words is
    believed, no daemon is asked. Names are taken from a deploy file, if there is one.

    Example:
      leasekit evidence verify broker.evidence
      leasekit evidence verify f.json --json
    """
    key = public_key("--site", site)
    answers = [one for path in against for one in _statements(path)]
    names = known_names(place)
    verdict: Verdict | None = None
    reason = problem = ""
    found: Evidence | None = None
    try:
        found = decode_evidence(_read(source, EVIDENCE_MAX, "evidence"))
        verdict = verify_evidence(ED25519, found, against=answers, site=key, names=names)
    except TicketError as error:
        reason, problem = error.code, str(error)
    answer = {
        "proven": verdict is not None and not verdict.missing,
        "open": verdict is not None and bool(verdict.missing),
        "reason": reason,
        "problem": problem,
        "kind": found.kind if found is not None else "",
        "instant": found.instant if found is not None else None,
        **_key("guilty", verdict.guilty if verdict is not None else b"", names),
        **{key: getattr(verdict, key, "") for key in ("words", "refutable", "missing")},
        "claims": [claim.id for claim in found.claims] if found is not None else [],
    }
    if any(one.kind == TRUNCATION for one in answers):
        note("a truncation does not count by itself: bring the site's receipt for it")
    if verdict is None:
        return answer, f"proves nothing ({reason}): {problem}", 1
    fields = [
        ("open" if verdict.missing else "proven", verdict.words),
        ("accused" if verdict.missing else "guilty", key_words(verdict.guilty, names)),
        ("its key", verdict.guilty.hex()),
        ("refuted by", verdict.refutable),
        ("proven by", verdict.missing),
    ]
    return answer, lambda _: print_fields(fields), EXIT_OPEN if verdict.missing else 0


@command(evidence, name="show")
def show_evidence(place: DeployPlace, source: Path = SOURCE) -> Shown:
    """Show the claims and statements in evidence, by what is signed, without judging them (see `evidence verify`).

    Example:
      leasekit evidence show broker.evidence
      leasekit evidence show f.json --json
    """
    try:
        found = decode_evidence(_read(source, EVIDENCE_MAX, "evidence"))
    except TicketError as error:
        raise LeasekitError(f"{source}: {error}") from error
    names = known_names(place)
    first, other = ("parent", "child") if found.kind == OVERDELEGATION else ("root", "link")
    claims = [{"": other if index else first, **_claim(claim, names)} for index, claim in enumerate(found.claims)]
    statements = [
        {
            "kind": one.kind,
            **_key("signer", one.signer, names),
            "subject": one.subject,
            "at": one.at,
            "detail": one.detail,
            "signature_ok": ED25519.verify(one.signer, one.signature, one.body),
        }
        for one in found.statements
    ]

    def told(_: object) -> None:
        print_fields([("kind", found.kind), ("when", in_words(found.instant))])
        CLAIMS(claims)
        if statements:
            STATEMENTS(statements)

    plain = [{key: value for key, value in claim.items() if key} for claim in claims]
    return {"kind": found.kind, "instant": found.instant, "claims": plain, "statements": statements}, told


def _statements(file: Path) -> list[Statement]:
    """Statements: one as it travels, in hex or in base64, or several in hex, one on each line."""
    data = _read(file, STATEMENTS_MAX, "file of statements")
    lines = data.split(b"\n")
    several = [line for line in lines if line.strip()]
    try:
        if len(several) > 1 and all(HEX.fullmatch(line) for line in several):
            return [decode_statement(plain_bytes(line)) for line in several]
        return [decode_statement(plain_bytes(data))]
    except TicketError as error:
        raise LeasekitError(f"{file}: {error}") from error
