"""``leasekit evidence``: what a file proves, of whom, checked by anybody without a daemon."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import click

from leasekit.cli.output import example, json_option, note, print_fields, print_json, print_table
from leasekit.cli.places import DeployPlace, daemon_options
from leasekit.cli.ticket import key_words, known_names, plain_bytes, public_key
from leasekit.core.claims.evidence import (
    EVIDENCE_MAX,
    OVERDELEGATION,
    Evidence,
    Verdict,
    decode_evidence,
    in_words,
    verify_evidence,
)
from leasekit.core.claims.keys import ED25519, fingerprint
from leasekit.core.claims.statements import TRUNCATION, Statement, decode_statement
from leasekit.core.errors import LeasekitError, TicketError

EXIT_OPEN: Final = 3
"""Exit status: what the evidence says is signed, and may have an innocent reason that only its site can rule out."""
CLAIMS: Final = ("", "issuer", "holder", "type", "units", "degree", "from", "until", "claim")
STATEMENTS: Final = ("", "signer", "about", "at", "says")
FILE_MAX: Final = 16 * 1024 * 1024
HEX: Final = re.compile(rb"\s*[0-9a-f]{128,}\s*")

_source = click.argument("source", metavar="FILE", type=click.Path(path_type=Path))


@click.group()
def evidence() -> None:
    """Look at evidence of what somebody did wrong, and check it."""


@evidence.command(epilog=example("leasekit evidence verify broker.evidence", "leasekit evidence verify f.json --json"))
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
def verify(place: DeployPlace, source: Path, against: tuple[Path, ...], site: str, as_json: bool) -> int:
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
        found = decode_evidence(_text(source))
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


@evidence.command(epilog=example("leasekit evidence show broker.evidence", "leasekit evidence show f.json --json"))
@_source
@daemon_options
@json_option
def show(place: DeployPlace, source: Path, as_json: bool) -> int:
    """Show the claims and statements in evidence, by what is signed, without judging them (see `evidence verify`)."""
    try:
        found = decode_evidence(_text(source))
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
                f"{claim.degree / 1000:g}", in_words(claim.term.start), in_words(claim.term.end), claim.id[:16],
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


def _text(file: Path) -> bytes:
    with file.open("rb") as stream:
        data = stream.read(EVIDENCE_MAX + 1)
    if len(data) > EVIDENCE_MAX:
        raise LeasekitError(f"{file}: found more than {EVIDENCE_MAX} bytes, which no evidence has")
    return data


def _statements(file: Path) -> list[Statement]:
    """Statements: one as it travels, in hex or in base64, or several in hex, one on each line."""
    with file.open("rb") as stream:
        data = stream.read(FILE_MAX + 1)
    if len(data) > FILE_MAX:
        raise LeasekitError(f"{file}: found more than {FILE_MAX} bytes of statements")
    lines = data.split(b"\n")
    several = [line for line in lines if line.strip()]
    try:
        if len(several) > 1 and all(HEX.fullmatch(line) for line in several):
            return [decode_statement(plain_bytes(line)) for line in several]
        return [decode_statement(plain_bytes(data))]
    except TicketError as error:
        raise LeasekitError(f"{file}: {error}") from error
