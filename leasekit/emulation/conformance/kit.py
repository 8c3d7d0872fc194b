"""Checks a mapper in child processes, and says what they found.

Two children play the same cases, with different hash seeds: what a mapper decides must not depend on them, nor on
random numbers that no seed fixes. A child that says nothing for too long is killed, and what it was at is the fault.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from leasekit.core.errors import LeasekitError
from leasekit.core.reasons import with_article
from leasekit.core.settings import SettingsError
from leasekit.emulation.conformance import watched
from leasekit.emulation.conformance.cases import (
    FORMAT,
    Case,
    MadeTurn,
    Recorded,
    draw,
    played_from_json,
    played_to_json,
    read_case,
    to_json,
)
from leasekit.emulation.conformance.child import BUG, Subject
from leasekit.emulation.conformance.loads import Cost
from leasekit.emulation.spread import Progress
from leasekit.policies.registry import BUILT_IN, METHODS, NO_MAPPER, find_mapper

CHECKS: Final[Mapping[str, str]] = {
    watched.OVERBOOKS: "nothing is promised twice, at no instant more than there is",
    watched.VALID: "decisions name what waits, once, with units that were asked for",
    watched.GROUPS: "requests of a group are granted together or not at all",
    watched.WINDOWS: "terms lie within what was asked for, and not in the past",
    watched.ANSWERS: "what waits alone and fits is granted",
    watched.SURVIVES: "nothing there, nothing to do, all taken: it never raises",
    watched.TIME: "every turn ends, and there are not too many",
    watched.SAME: "twice the same case, twice the same decisions",
}
"""What is checked, and what it means."""
COST: Final = "what a turn costs"
__all__ = [
    "CHECKS",
    "COST",
    "Checked",
    "KitFinding",
    "Subject",
    "check",
    "read_case",
    "replay",
    "role_of",
    "write_case",
]


@attrs.frozen(kw_only=True)
class KitFinding:
    """A fault: the check, in words, and the smallest case, or single turn, that shows it; none is known where a process
    ended while a case was made smaller.
    """

    check: str
    text: str
    case: Case | MadeTurn | None = None


@attrs.frozen(kw_only=True)
class Checked:
    """What came of it. ``journal`` has the turns of a case that was replayed: instant, what was shown, what was
    decided.
    """

    role: str
    cases: int
    turns: int
    faults: tuple[KitFinding, ...]
    costs: tuple[Cost, ...] = ()
    journal: tuple[tuple[int, tuple[str, ...], tuple[str, ...]], ...] = ()


def role_of(target: str, given: str | None) -> str:
    """The role of a mapper, if it is not given: the one whose method it has. Raises ``LeasekitError``."""
    if given is not None:
        find_mapper(target, given, "mapper")
        return given
    roles, errors = [], []
    for role in METHODS:
        if ":" not in target and any(target in names for names in BUILT_IN.values()) and target not in BUILT_IN[role]:
            continue
        try:
            find_mapper(target, role, "mapper")
            roles.append(role)
        except SettingsError as error:
            errors.append(error)
    if len(roles) == 1:
        return roles[0]
    if not roles:
        known = [error for error in errors if NO_MAPPER not in str(error)]
        if known:
            raise known[0]
        methods = ", ".join(f"{method}() of {with_article(role)}" for role, method in METHODS.items())
        raise LeasekitError(f"mapper {target!r} has the method of no role, which are {methods}")
    raise LeasekitError(f"mapper {target!r} has the methods of {' and '.join(roles)}: say which with --role")


def check(subject: Subject, progress: Progress | None = None) -> Checked:
    """Play all cases twice. Raises ``LeasekitError`` if the mapper can't be made at all."""
    with _Children(subject, None) as (first, second):
        _listen([first, second], subject, progress)
    faults = list(first.faults)
    both = zip(first.digests, second.digests, strict=False)
    differing = [number for number, (one, other) in enumerate(both) if one and other and one != other]
    if differing:
        cases = [draw(subject.seed, number, subject.types) for number in differing]
        smallest = min(cases, key=lambda case: case.size)
        text = f"decided otherwise when the same case was played again ({len(differing)} of {len(first.digests)} cases)"
        faults.append(KitFinding(check=watched.SAME, text=text, case=smallest))
    return Checked(
        role=subject.role, cases=len(first.digests), turns=first.turns, faults=tuple(faults), costs=tuple(first.costs)
    )


def replay(subject: Subject, case: Case | MadeTurn, progress: Progress | None = None) -> Checked:
    """Play one case or turn, twice. Raises ``LeasekitError`` if the mapper can't be made at all."""
    with _Children(subject, case) as (first, second):
        _listen([first, second], subject, progress)
    faults = list(first.faults)
    if not faults and first.digests != second.digests:
        where = next((i for i, (a, b) in enumerate(zip(first.journal, second.journal, strict=False)) if a != b), None)
        text = "decided otherwise when the same case was played again"
        if where is not None:
            now, _, one = first.journal[where]
            text += f"; at {now} ms once {', '.join(one)}, then {', '.join(second.journal[where][2])}"
        faults.append(KitFinding(check=watched.SAME, text=text, case=case))
    return Checked(role=subject.role, cases=1, turns=first.turns, faults=tuple(faults), journal=tuple(first.journal))


def write_case(folder: Path, subject: Subject, found: KitFinding) -> Path:
    """The failing case as a file in ``folder``, which is made, named after the mapper and the check."""
    assert found.case is not None, "only what takes a case is written"
    case = found.case if isinstance(found.case, Case) else None
    turn = found.case if isinstance(found.case, MadeTurn) else None
    recorded = Recorded(
        format=FORMAT, role=subject.role, target=subject.target, settings=subject.settings, check=found.check,
        fault=found.text, case=case, turn=turn,
    )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"\W+", "-", f"{Path(subject.target).name} {found.check}").strip("-").lower()
    path = folder / f"mapper-check-{name}.json"
    path.write_text(json.dumps(to_json(recorded), indent=2) + "\n", encoding="utf-8")
    return path


# -- children ----------------------------------------------------------------------------------------------------------


class _KitChild:
    """One child, and what it has said so far."""

    def __init__(self, subject: Subject, case: Case | MadeTurn | None, hash_seed: int) -> None:
        self.subject = subject
        self.replay = case
        self.faults: list[KitFinding] = []
        self.digests: list[str] = []
        self.costs: list[Cost] = []
        self.journal: list[tuple[int, tuple[str, ...], tuple[str, ...]]] = []
        self.turns = 0
        self.at: Any = None
        self.over = False
        self.error = ""
        self.heard = time.monotonic()
        self._rest = b""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the child
        job = {
            "subject": attrs.asdict(subject), "digests_only": hash_seed > 1,
            "replay": None if case is None else played_to_json(case),
        }  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, "-m", "leasekit.emulation.conformance.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        )
        assert self.process.stdin is not None and self.process.stdout is not None, "both are pipes"
        self.process.stdin.write(json.dumps(job).encode())
        self.process.stdin.close()
        self.stdout = self.process.stdout

    def read(self) -> None:
        """What has come by now."""
        data = os.read(self.stdout.fileno(), 1 << 16)
        self.heard = time.monotonic()
        if not data:
            self._ended()
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._hear(json.loads(line))

    def _hear(self, words: dict[str, Any]) -> None:
        if "case" in words:
            self.at = words["case"]
        elif "turn" in words:
            self.at = played_from_json(words)
        elif "fault" in words:
            fault = words["fault"]
            self.faults.append(KitFinding(check=fault["check"], text=fault["text"], case=played_from_json(fault)))
        elif "error" in words:
            self.error = words["error"]
        elif "done" in words:
            done = words["done"]
            self.digests, self.turns = done["digests"], done["turns"]
            self.costs = [Cost(**cost) for cost in done["costs"]]
            self.journal = [(now, tuple(shown), tuple(decided)) for now, shown, decided in done.get("journal", ())]
            self.over = True

    def _ended(self) -> None:
        status = self.process.wait()
        if not self.over and not self.error:
            self._errors.seek(0)
            printed = self._errors.read().decode(errors="replace").strip()
            if status == BUG:
                raise RuntimeError(f"the kit itself failed, playing case {self.at}:\n{printed}")
            last = printed.splitlines()[-1:]
            told = f": {last[0]}" if last else ""
            text = f"ended its process with status {status}{told}"
            self.faults.append(KitFinding(check=watched.SURVIVES, text=text, case=self._case()))
        self.over = True

    def give_up(self, seconds: float) -> None:
        """It has said nothing for so long that its mapper must be in a loop that nothing can end from inside."""
        text = f"a turn did not end within {seconds:g} s and could not be interrupted; its process was killed"
        self.faults.append(KitFinding(check=watched.TIME, text=text, case=self._case()))
        self.over = True

    def _case(self) -> Case | MadeTurn | None:
        if self.at == "replay":
            return self.replay
        if isinstance(self.at, MadeTurn):
            return self.at
        return draw(self.subject.seed, self.at, self.subject.types) if isinstance(self.at, int) else None

    def close(self) -> None:
        """End it, whatever it does."""
        self.process.kill()
        self.process.wait()
        self.stdout.close()
        self._errors.close()


class _Children:
    """The two children, which are ended whatever happens."""

    def __init__(self, subject: Subject, case: Case | MadeTurn | None) -> None:
        self._made = [_KitChild(subject, case, hash_seed) for hash_seed in (1, 2)]

    def __enter__(self) -> Sequence[_KitChild]:
        return self._made

    def __exit__(self, *exc: object) -> None:
        for child in self._made:
            child.close()


def _listen(children: Sequence[_KitChild], subject: Subject, progress: Progress | None) -> None:
    """Until all are over. Raises ``LeasekitError`` for what a child says is wrong with the mapper as such."""
    with selectors.DefaultSelector() as selector:
        for child in children:
            selector.register(child.stdout, selectors.EVENT_READ, child)
        while any(not child.over for child in children):
            for key, _ in selector.select(timeout=min(_left(child, subject) for child in children if not child.over)):
                key.data.read()
                if progress is not None and isinstance(children[0].at, int):
                    progress("cases", (children[0].at + 1) / max(1, subject.cases))
            for child in children:
                if child.over and child.stdout in _registered(selector):
                    selector.unregister(child.stdout)
                elif not child.over and _left(child, subject) <= 0:
                    child.give_up(_patience(child, subject))
    for child in children:
        if child.error:
            raise LeasekitError(child.error)


def _registered(selector: selectors.BaseSelector) -> Iterator[Any]:
    return (key.fileobj for key in list(selector.get_map().values()))


def _patience(child: _KitChild, subject: Subject) -> float:
    """A child ends a turn by itself at its limit, of processor time, or at four times that; then it is given up."""
    return 5 * (subject.limit_of(child.at) if isinstance(child.at, MadeTurn) else subject.limit) + 10


def _left(child: _KitChild, subject: Subject) -> float:
    return max(0.0, child.heard + _patience(child, subject) - time.monotonic())
