"""What the driver remembers of each node: a file for each, whole at any moment, read by whichever daemon comes next.

A node's files say at every moment what may be on its disk. It counts as erased only when its own report of that has
been written down, and from before anything is written to it again it does not.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from hmac import compare_digest
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import attrs

from leasekit.core.drivers import SiteFaultError, UnitContext
from leasekit.drivers.files import damaged, read_as, read_table, write_whole

State: TypeAlias = Literal["unknown", "clean", "imaging", "starting", "ready", "cleaning", "dirty"]


@attrs.frozen(kw_only=True)
class NodeRecord:
    """One node. ``number`` is that of the action which brought it here.

    ``token`` is the secret of its present job, and of no other: a node that comes with an older one is sent away.
    ``ordered`` says that the start for it was ordered and made sure of, ``report`` how the job ended (``done``, or
    ``failed`` and why). ``offset`` is the number of its addresses (0: none).

    What the node did of the job: ``loaded``, it fetched the imaging environment; ``told``, it was told what to do;
    ``heard``, it spoke; ``erasing``, it said that it erases.

    ``erase`` says that the job is to erase the disk first. ``disk`` is what the site called the disk when the job
    began, ``identity`` what that disk said of itself; a clean node's are those of the disk that was erased.
    """

    node: str
    state: State = "unknown"
    lease: str = ""
    number: int = 0
    image: str = ""
    hostname: str = ""
    host_key: str = ""
    keys: str = ""
    offset: int = 0
    token: str = ""
    erase: bool = True
    disk: str = ""
    identity: str = ""
    ordered: bool = False
    loaded: bool = False
    told: bool = False
    heard: bool = False
    erasing: bool = False
    report: str = ""

    def is_of(self, unit: UnitContext) -> bool:
        """Whether that action brought the node to where it is."""
        return (self.number, self.lease) == (unit.number, unit.lease)

    def with_job(self, token: str, **changes: Any) -> NodeRecord:
        """The same with another job, of which nothing has happened yet; an empty ``token``: with none."""
        nothing: dict[str, Any] = dict.fromkeys(("ordered", "loaded", "told", "heard", "erasing"), False)
        return attrs.evolve(self, token=token, report="", **nothing, **changes)

    def at_rest(self, state: State) -> NodeRecord:
        """What is remembered of a node that nobody has: which disk was erased."""
        return NodeRecord(node=self.node, state=state, disk=self.disk, identity=self.identity)

    def not_done(self) -> str:
        """What is missing for the job to be done, whatever is said of it; nothing where it may be."""
        if not (self.told and self.heard):
            return "it was not told what to do"
        return "it erased nothing" if self.erase and not self.erasing else ""


SERVED: Final = frozenset({"imaging", "starting", "ready", "cleaning"})
"""States of nodes that are on: they need DHCP and names, and may start at any time."""


def new_token() -> str:
    """A secret for one job."""
    return secrets.token_hex(16)


class Records:
    """All nodes. The HTTP server's threads use it beside the driver; ``changed`` is called with a node's name, in
    whichever thread, after each change.
    """

    def __init__(self, directory: Path, changed: Callable[[str], None]) -> None:
        self._directory = directory
        self._changed = changed
        self._lock = threading.Lock()
        self._known: dict[str, NodeRecord] = {}

    def load(self, nodes: list[str]) -> None:
        """Reads the nodes' files; blocks. Raises ``DriverError`` naming the file."""
        with self._lock:
            # Closed to others, for records hold secrets.
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            for node in nodes:
                record = read_as(NodeRecord, self._path(node)) or NodeRecord(node=node)
                if record.node != node:
                    raise damaged(self._path(node), "what is no record of the node")
                self._known[node] = record

    def get(self, node: str) -> NodeRecord:
        """A node's record."""
        return self._known[node]

    def all(self) -> list[NodeRecord]:
        """All records, in no order."""
        return list(self._known.values())

    def of_token(self, token: str) -> NodeRecord | None:
        """The node whose present job has that secret, or none."""
        given = token.encode("utf-8", "replace")
        for record in self.all():
            if record.token and compare_digest(record.token.encode(), given):
                return record
        return None

    def put(self, record: NodeRecord) -> None:
        """Keeps a record; blocks. Raises ``DriverError`` naming the file."""
        with self._lock:
            self._write(record)
        self._changed(record.node)

    def change(self, node: str, token: str, **changes: Any) -> NodeRecord | None:
        """Changes a record if its job is still that one; blocks. Raises ``DriverError`` naming the file."""
        with self._lock:
            record = self._known[node]
            if record.token != token:
                return None
            changed = attrs.evolve(record, **changes)
            if changed != record:
                self._write(changed)
        self._changed(node)
        return changed

    def take_offset(self, node: str, first: int, last: int) -> int:
        """The next number for addresses after the one that was given last, of those that nobody has; blocks.

        Raises ``DriverError`` where all are taken.
        """
        with self._lock:
            path = self._directory / "addresses"
            given = (read_table(path) or {}).get("last", last)
            if type(given) is not int:
                raise damaged(path, "no number under last")
            taken = {record.offset for record in self._known.values() if record.node != node}
            count = last - first + 1
            begin = given + 1 - first if first <= given < last else 0
            for step in range(count):
                offset = first + (begin + step) % count
                if offset not in taken:
                    write_whole(path, {"last": offset})
                    # Kept at once, so that no two nodes get it in turn.
                    self._write(attrs.evolve(self._known[node], offset=offset))
                    return offset
        raise SiteFaultError(f"node {node}: all {count} addresses of the boot network are taken")

    def _write(self, record: NodeRecord) -> None:
        write_whole(self._path(record.node), attrs.asdict(record))
        self._known[record.node] = record

    def _path(self, node: str) -> Path:
        return self._directory / f"{node}.json"
