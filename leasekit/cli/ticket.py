"""``leasekit ticket`` and ``leasekit evidence``: what a signed file says, and whether it is true; without a daemon."""

from __future__ import annotations

import base64
import binascii
import os
import re
import sqlite3
import sys
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any, Final

import click

from leasekit.cli.output import classes_of, example, json_option, listing, note, print_fields, print_json, print_table
from leasekit.cli.places import FILE_VARIABLE, GUEST, DeployPlace, Stored, daemon_options
from leasekit.cli.times import TERM, WHEN, Count, now, to_second
from leasekit.core.claims.claim import DEPTH_DEFAULT, DEPTH_MAX, Ticket, TicketVerifier, decode_ticket
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
from leasekit.core.properties import describe_counts
from leasekit.core.reasons import with_article
from leasekit.core.schema import TABLES
from leasekit.core.time import Instant

FILE_MAX: Final = 64 * 1024


def name_words(name: str, short: str) -> str:
    """As :func:`key_words`, of a key's short form."""
    return f"{name} ({short})" if name else short


def key_column(field: str) -> Callable[[Mapping[str, Any]], str]:
    """The cell of a table that shows whose a key of a row is."""
    return lambda row: name_words(row[f"{field}_name"], row[f"{field}_fingerprint"])


CHAIN: Final = listing(
    "#", ("issuer", key_column("issuer")), ("holder", key_column("holder")), "type", "units", ("classes", classes_of),
    *TERM,
    ("degree", lambda claim: f"{claim['degree'] / 1000:g}"),
    ("signature", lambda claim: "ok" if claim["signature_ok"] else "BAD"), ("claim", lambda claim: claim["claim"][:16]),
    empty="", right=("#", "units", "degree"),
)  # fmt: skip


@click.group()
def ticket() -> None:
    """Look at tickets."""


@ticket.command(epilog=example("leasekit ticket show --lease web", "leasekit ticket show web.ticket --json"))
@click.argument("source", metavar="[FILE|-]", default="")
@click.option("--lease", default="", metavar="LEASE", help="The ticket of this lease of a guest, from its store.")
@click.option("--save", type=click.Path(path_type=Path), metavar="FILE", help="Write the ticket to a file as well.")
@daemon_options
@json_option
def show(place: DeployPlace, source: str, lease: str, save: Path | None, as_json: bool) -> int:
    """Show the chain of claims in a ticket, from the site's to the holder's own, and check it.

    The ticket is read from FILE (or - for standard input: as it travels, in hex, or in base64) or is that of a --lease.
    Exits with 1 if a signature or the chain is wrong. A ticket that is over, or given back, is still true: only
    its site knows whether it was used.
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
    if as_json:
        print_json(described)
    else:
        CHAIN({"#": index, **claim} for index, claim in enumerate(described["chain"]))
        note(f"the chain is wrong: {problem}" if problem else f"the chain is sound; the ticket {described['time']}")
    return 1 if problem else 0


@ticket.command(
    "verify",
    epilog=example(
        "leasekit ticket verify web.ticket", "leasekit ticket verify web.ticket --site keys/north.pub --json"
    ),
)
@click.argument("source", metavar="FILE|-")
@click.option("--site", default="", metavar="KEY", help="The site it must be of: 64 hex digits, or a .pub file.")
@click.option("--holder", default="", metavar="KEY", help="The key that must hold it.")
@click.option("--at", type=WHEN, default=None, metavar="TIME", help="When it must not be over yet (default: any time).")
@click.option(
    "--depth",
    type=Count(1, DEPTH_MAX),
    default=DEPTH_DEFAULT,
    show_default=True,
    help="The most claims in it.",
)
@json_option
def verify_(source: str, site: str, holder: str, at: Instant | None, depth: int, as_json: bool) -> int:
    """Check a ticket offline, as its site would: every signature, the root's own too, and every rule of the chain.

    Exits with 1, and says which check failed, if the ticket is not to be believed. Without --site any site's will do.
    What only the site knows is not checked: whether the ticket was given back, redeemed, or is one of too many.
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
    if as_json:
        print_json({"ok": not reason, "reason": reason, "problem": problem, **(_short(found) if found else {})})
    elif reason or found is None:
        note(f"not to be believed ({reason}): {problem}")
    else:
        plain = _short(found)
        print_fields([("ticket", "ok"), *((name, value) for name, value in plain.items() if name != "term")])
        print_fields([("from", to_second(found.leaf.term.start)), ("until", to_second(found.leaf.term.end))])
    return 1 if reason else 0


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
        "chain": [
            {
                "claim": claim.id,
                "issuer": claim.issuer,
                "issuer_fingerprint": fingerprint(claim.issuer),
                "issuer_name": names.get(claim.issuer, ""),
                "holder": claim.holder,
                "holder_fingerprint": fingerprint(claim.holder),
                "holder_name": names.get(claim.holder, ""),
                "type": claim.type,
                "units": claim.units,
                "term": list(claim.term),
                "serial": claim.serial,
                "degree": claim.degree,
                "classes": describe_counts(claim.classes),
                "constraints": dict(claim.constraints),
                "parent": claim.parent,
                "signature_ok": ED25519.verify(claim.issuer, claim.signature, claim.body),
            }
            for claim in found.chain
        ],
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
    columns = ", ".join(TABLES[table].columns)
    try:
        with closing(sqlite3.connect(f"{spec.store.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            return connection.execute(f"SELECT {columns} FROM {table} ORDER BY live DESC, rowid DESC").fetchall()
    except sqlite3.Error as error:
        raise LeasekitError(f"{spec.store}: {error}") from error


def key_words(key: bytes, names: Mapping[bytes, str]) -> str:
    """A key for people, everywhere in one form: its short form, and whose it is, where that is known."""
    return name_words(names.get(key, ""), fingerprint(key))


def known_names(place: DeployPlace) -> Mapping[bytes, str]:
    """The names of keys, as far as a deploy file is at hand and its public keys are there.

    Raises ``LeasekitError`` for a deploy file that was named, and can't be read, where no control socket was.
    """
    from leasekit.config.keys import KeyFileError, load_public, public_path

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


EXIT_OPEN: Final = 3
"""Exit status: what the evidence says is signed, and may have an innocent reason that only its site can rule out."""
CLAIMS: Final = ("", "issuer", "holder", "type", "units", "classes", "degree", "from", "until", "claim")
STATEMENTS: Final = ("", "signer", "about", "at", "says")
STATEMENTS_MAX: Final = 16 * 1024 * 1024
HEX: Final = re.compile(rb"\s*[0-9a-f]{128,}\s*")

_source = click.argument("source", metavar="FILE", type=click.Path(path_type=Path))


@click.group()
def evidence() -> None:
    """Look at evidence of what somebody did wrong, and check it."""


@evidence.command(
    "verify", epilog=example("leasekit evidence verify broker.evidence", "leasekit evidence verify f.json --json")
)
@_source
@click.option(
    "--against", type=click.Path(path_type=Path), multiple=True, metavar="STATEMENT",
    help="Signed statements that the accused brings: receipts (`leasekit broker receipts --out`), contracts.",
)  # fmt: skip
@click.option(
    "--site", default="", metavar="KEY",
    help="The site's key, whose word and receipts count, and whose ticket it must be about: 64 hex digits, or a .pub "
    "file [the site that the claims begin with].",
)  # fmt: skip
@daemon_options
@json_option
def verify_evidence_file(place: DeployPlace, source: Path, against: tuple[Path, ...], site: str, as_json: bool) -> int:
    """Check evidence offline: who did what, by what is signed alone.

    Exits with 0 if it is proven, with 3 if it is open (it may have an innocent reason, which the site's word would rule
    out: `leasekit site word`), and with 1, saying why, if it proves nothing. Nothing that FILE says in words is
    believed, no daemon is asked. Names are taken from a deploy file, if there is one.
    """
    key = public_key("--site", site)
    answers = [answer for path in against for answer in _statements(path)]
    names = known_names(place)
    verdict: Verdict | None = None
    reason = problem = ""
    found: Evidence | None = None
    try:
        found = decode_evidence(_read(source, EVIDENCE_MAX, "evidence"))
        verdict = verify_evidence(ED25519, found, against=answers, site=key, names=names)
    except TicketError as error:
        reason, problem = error.code, str(error)
    if as_json:
        guilty = verdict.guilty if verdict is not None else b""
        print_json(
            {
                "proven": verdict is not None and not verdict.missing,
                "open": verdict is not None and bool(verdict.missing),
                "reason": reason,
                "problem": problem,
                "kind": found.kind if found is not None else "",
                "instant": found.instant if found is not None else None,
                "guilty": guilty,
                "guilty_name": names.get(guilty, ""),
                "guilty_fingerprint": fingerprint(guilty) if guilty else "",
                "words": verdict.words if verdict is not None else "",
                "refutable": verdict.refutable if verdict is not None else "",
                "missing": verdict.missing if verdict is not None else "",
                "claims": [claim.id for claim in found.claims] if found is not None else [],
            }
        )
    elif verdict is None:
        note(f"proves nothing ({reason}): {problem}")
    else:
        print_fields(
            [
                ("open" if verdict.missing else "proven", verdict.words),
                ("accused" if verdict.missing else "guilty", key_words(verdict.guilty, names)),
                ("its key", verdict.guilty.hex()),
                ("refuted by", verdict.refutable),
                *([("proven by", verdict.missing)] if verdict.missing else []),
            ]
        )
    if any(answer.kind == TRUNCATION for answer in answers):
        note("a truncation does not count by itself: bring the site's receipt for it")
    if verdict is None:
        return 1
    return EXIT_OPEN if verdict.missing else 0


@evidence.command(
    "show", epilog=example("leasekit evidence show broker.evidence", "leasekit evidence show f.json --json")
)
@_source
@daemon_options
@json_option
def show_evidence(place: DeployPlace, source: Path, as_json: bool) -> int:
    """Show the claims and statements in evidence, by what is signed, without judging them (see `evidence verify`)."""
    try:
        found = decode_evidence(_read(source, EVIDENCE_MAX, "evidence"))
    except TicketError as error:
        raise LeasekitError(f"{source}: {error}") from error
    names = known_names(place)

    def named(key: bytes) -> str:
        return key_words(key, names)

    if as_json:
        print_json(_described(found))
        return 0
    print_fields([("kind", found.kind), ("when", in_words(found.instant))])
    roles = ("parent", "child") if found.kind == OVERDELEGATION else ("root", "link")
    print_table(
        CLAIMS,
        [
            (
                roles[index > 0], named(claim.issuer), named(claim.holder), claim.type, claim.units,
                classes_of({"classes": describe_counts(claim.classes)}), f"{claim.degree / 1000:g}",
                in_words(claim.term.start), in_words(claim.term.end), claim.id[:16],
            )
            for index, claim in enumerate(found.claims)
        ],
        empty="no claims",
        right=("units", "degree"),
    )  # fmt: skip
    if found.statements:
        print_table(
            STATEMENTS,
            [(one.kind, named(one.signer), one.subject.hex()[:16], in_words(one.at), one.detail)
             for one in found.statements],
            empty="",
        )  # fmt: skip
    return 0


def _described(found: Evidence) -> dict[str, Any]:
    return {
        "kind": found.kind,
        "instant": found.instant,
        "claims": [
            {
                "claim": claim.id,
                "issuer": claim.issuer,
                "holder": claim.holder,
                "type": claim.type,
                "units": claim.units,
                "classes": describe_counts(claim.classes),
                "degree": claim.degree,
                "term": list(claim.term),
                "parent": claim.parent,
                "signature_ok": ED25519.verify(claim.issuer, claim.signature, claim.body),
            }
            for claim in found.claims
        ],
        "statements": [
            {
                "kind": one.kind,
                "signer": one.signer,
                "subject": one.subject,
                "at": one.at,
                "detail": one.detail,
                "signature_ok": ED25519.verify(one.signer, one.signature, one.body),
            }
            for one in found.statements
        ],
    }


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
