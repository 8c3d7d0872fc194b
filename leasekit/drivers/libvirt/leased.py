"""Hosts that are leased machines themselves: which machine is which host now, and how to log in to it.

A site offers virtual machines on hosts that it does not own for good: they come from a lease of physical machines, and
go back with it. Its deploy file says of such a host all but where it is. That is in a book, a file that
``leasekit site hypervisor`` writes as machines join and leave, and that the driver reads before each call.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit, urlunsplit

import attrs

from leasekit.core.drivers import DriverError
from leasekit.core.time import INSTANT_MAX, Instant
from leasekit.drivers.files import alone, damaged, read_table, write_whole
from leasekit.drivers.libvirt.settings import LeasedHosts
from leasekit.drivers.names import check_member_id
from leasekit.drivers.ssh import Login, login_of

LOGIN: Final = ("host", "port", "user", "host_key")
"""The properties of a machine that say how to log in to it."""
MARK: Final = 12
"""How many digits tell the programs for one machine from those for another."""
KNOWN: Final = ".known"


@attrs.frozen(kw_only=True)
class LeasedMachine:
    """A leased machine: ``name`` is what its lease calls it, ``until`` when it goes back at the latest (0: nobody
    knows).
    """

    name: str
    login: Login
    until: Instant = 0

    def as_row(self) -> dict[str, Any]:
        """What the book says of it."""
        login = self.login
        return {
            "name": self.name, "host": login.host, "port": str(login.port), "user": login.user,
            "host_key": login.host_key, "until": self.until,
        }  # fmt: skip


def machine_of(name: str, properties: Mapping[str, str], until: Instant = 0) -> LeasedMachine:
    """A machine with these properties: ``host``, ``port``, ``user``, and ``host_key``, which it must have. Raises
    ``DriverError``, not worth a retry, that names what can't be used.
    """
    if not 0 <= until <= INSTANT_MAX:
        raise DriverError(f"until: found {until}, expected milliseconds from 0 to {INSTANT_MAX}", retry=False)
    return LeasedMachine(name=check_member_id(name), login=login_of(properties), until=until)


class HostBook:
    """The file that says which machine is which host, for the hosts named ``slots``."""

    def __init__(self, path: Path, slots: Sequence[str]) -> None:
        self.path = path
        self.slots = tuple(slots)

    def all(self) -> dict[str, LeasedMachine]:
        """The machines by the host that each is. Raises ``DriverError`` naming the file."""
        found = {}
        for slot, row in (read_table(self.path) or {}).items():
            found[slot] = self._machine(slot, row)
        return found

    def add(self, machine: LeasedMachine) -> str:
        """Has a machine be a host: the one that it is already, or else the first that nobody is. Returns which. Raises
        ``DriverError`` where all are taken.
        """
        with self._changing() as machines:
            for slot in self.slots:
                if slot in machines and machines[slot].name == machine.name:
                    machines[slot] = machine
                    return slot
            for slot in self.slots:
                if slot not in machines:
                    machines[slot] = machine
                    return slot
            taken = ", ".join(f"{slot} is {machines[slot].name}" for slot in self.slots)
            text = f"machine {machine.name}: there is no host left for it: {taken or 'all have a uri of their own'}"
            raise DriverError(text, retry=False)

    def remove(self, name: str) -> str:
        """Has a machine be a host no longer. Returns which it was, nothing if it was none. Raises ``DriverError``."""
        with self._changing() as machines:
            slot = next((slot for slot, machine in machines.items() if machine.name == name), "")
            machines.pop(slot, None)
        if slot:
            clear(self.path, slot)
        return slot

    @contextmanager
    def _changing(self) -> Iterator[dict[str, LeasedMachine]]:
        """What is written when the block ends well. One at a time: machines of a lease join side by side."""
        with alone(self.path.with_name(self.path.name + ".lock")):
            machines = self.all()
            yield machines
            write_whole(self.path, {slot: machine.as_row() for slot, machine in machines.items()})

    def _machine(self, slot: str, row: Any) -> LeasedMachine:
        texts = {*LOGIN, "name"}
        whole = isinstance(row, dict) and set(row) == {*texts, "until"} and all(isinstance(row[k], str) for k in texts)
        if not whole or type(row["until"]) is not int:
            raise damaged(self.path, f"{json.dumps(row)[:80]} for host {slot}")
        try:
            return machine_of(row["name"], {key: row[key] for key in LOGIN if row[key]}, row["until"])
        except DriverError as error:
            raise damaged(self.path, str(error)) from error


class LeasedHost:
    """Where one such host is."""

    def __init__(self, slot: str, settings: LeasedHosts) -> None:
        self._slot = slot
        self._settings = settings
        self._book = HostBook(settings.book, (slot,))
        self._folder = programs_of(settings.book)

    def uri(self) -> str:
        """What libvirt opens: another one for each machine that is the host; nothing where none is. Blocks.

        Beside the book there is a program for each host that libvirt runs as ssh: it knows the machine's host key, and
        takes no other. Raises ``DriverError`` for a damaged book, and where the program can't be written.
        """
        machine = self._book.all().get(self._slot)
        if machine is None:
            clear(self._settings.book, self._slot)
            return ""
        parts = urlsplit(self._settings.uri)
        login = machine.login
        host = f"[{login.host}]" if ":" in login.host else login.host
        program = quote(str(self._program(machine)), safe="/")
        query = "&".join(filter(None, (parts.query, f"command={program}", "no_tty=1")))
        return urlunsplit((parts.scheme, f"{login.user}@{host}:{login.port}", parts.path, query, ""))

    def _program(self, machine: LeasedMachine) -> Path:
        mark = sha256(json.dumps(machine.as_row() | {"until": 0}, sort_keys=True).encode()).hexdigest()[:MARK]
        program = self._folder / f"{self._slot}-{mark}"
        known = program.with_name(f"{program.name}{KNOWN}")
        options = machine.login.options(known, self._settings.key)
        words = ["ssh", "-F", "/dev/null", "-o", "BatchMode=yes", "-o", "IdentityAgent=none", *options]
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write_program(known, machine.login.known_hosts())
            _write_program(program, f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        except OSError as error:
            raise DriverError(f"can't write {error.filename or self._folder}: {error.strerror}") from error
        clear(self._settings.book, self._slot, (program, known))
        return program


def programs_of(book: Path) -> Path:
    """The folder beside a book with what is run in place of ssh, and with machines' host keys."""
    return book.absolute().with_name(f"{book.name}.ssh")


def clear(book: Path, slot: str, kept: Collection[Path] = ()) -> None:
    """Removes what was there for a host's machines, but for what is ``kept``; blocks. Raises ``DriverError``."""
    folder = programs_of(book)
    try:
        for path in folder.glob("*") if folder.is_dir() else ():
            if path not in kept and path.name.removesuffix(KNOWN)[: -MARK - 1] == slot:
                path.unlink(missing_ok=True)
    except OSError as error:
        raise DriverError(f"can't remove {error.filename or folder}: {error.strerror}") from error


def _write_program(path: Path, content: str) -> None:
    """Has the file hold that; who starts it sees all of it or the one before."""
    if path.exists() and path.read_text("utf-8") == content and os.access(path, os.X_OK):
        return
    beside = path.with_name(f"{path.name}.{os.getpid()}.new")
    beside.write_text(content, "utf-8")
    beside.chmod(0o700)
    beside.replace(path)
