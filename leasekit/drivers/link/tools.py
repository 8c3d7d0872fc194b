"""``tc`` and ``ip`` of iproute2: told by batches on their standard input, never through a shell, and understood."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from leasekit.core.drivers import DriverError, SiteFaultError
from leasekit.core.time import SECOND, Duration
from leasekit.drivers.commands import Run
from leasekit.drivers.link.settings import End
from leasekit.drivers.link.shaping import HANDLE, SeenShape

SEARCH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""The path on which the programs are looked for."""
NET_ADMIN, SYS_ADMIN = 12, 21
"""Capabilities of Linux (``man 7 capabilities``): to change interfaces, and to enter namespaces."""

_GRACE: Final[Duration] = 2 * SECOND
_CLASS: Final = re.compile(rf"class htb {HANDLE}([0-9a-f]+) .*?rate (\d+)([KMGT]?)bit")
_SENT: Final = re.compile(r"Sent (\d+) bytes \d+ pkts? \(dropped (\d+)")
_KBIT: Final = {"": 0.001, "K": 1, "M": 10**3, "G": 10**6, "T": 10**9}
_GONE: Final = ("does not exist", "Cannot open network namespace", "Cannot find device", "No such device")


class NoEndError(SiteFaultError):
    """The interface of an end is not there."""


class NoQueueError(SiteFaultError):
    """The kernel has not the kind of queue that was asked for."""


def missing_rights(*, namespaces: bool) -> str:
    """What this process may not do that the driver has to, in words; empty where it may."""
    needed = {NET_ADMIN: "CAP_NET_ADMIN"} | ({SYS_ADMIN: "CAP_SYS_ADMIN"} if namespaces else {})
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    held = int(status.partition("CapEff:")[2].split()[0], 16)
    missing = [name for bit, name in needed.items() if not held >> bit & 1]
    if not missing:
        return ""
    return (
        f"this process lacks {' and '.join(missing)}, which shaping needs: start the daemon as root, or with just that"
    )


@attrs.frozen(kw_only=True)
class Counters:
    """What one class has sent since it is there."""

    sent: int
    dropped: int


@attrs.frozen(kw_only=True)
class Tools:
    """The two programs, by their paths. All methods raise ``DriverError``."""

    tc: str
    ip: str

    async def see(self, end: End, log: Callable[[str], None]) -> SeenShape:
        """What an end has. Raises :class:`NoEndError` where there is no interface."""
        interface = end.interface
        (found,) = self._json(await self._run(self.ip, end, ["-j", "address", "show", "dev", interface], log), end)
        up = "UP" in found.get("flags", ())
        addresses = {f"{entry['local']}/{entry['prefixlen']}" for entry in found["addr_info"] if "local" in entry}
        queues = self._json(await self._run(self.tc, end, ["-j", "qdisc", "show", "dev", interface], log), end)
        root = next((queue for queue in queues if queue.get("root")), {"kind": "none", "handle": "0:"})
        if (root["kind"], root["handle"]) != ("htb", HANDLE):
            if root["handle"] != "0:":
                text = f"end {end} has a queue {root['kind']} {root['handle']} that is not leasekit's: remove it first"
                raise SiteFaultError(text, retry=False)
            return SeenShape(up=up, addresses=frozenset(addresses))
        shown = await self._run(self.tc, end, ["class", "show", "dev", interface], log)
        rules = await self._run(self.tc, end, ["-j", "filter", "show", "dev", interface, "parent", HANDLE], log)
        return SeenShape(
            up=up,
            ours=True,
            classes={int(minor, 16): round(int(rate) * _KBIT[unit]) for minor, rate, unit in _CLASS.findall(shown)},
            leaves={
                _minor(queue["parent"]): queue["kind"] for queue in queues if queue.get("parent", "").startswith(HANDLE)
            },
            filters=_filters(self._json(rules, end)),
            addresses=frozenset(addresses),
        )

    async def counters(self, end: End, minor: int, log: Callable[[str], None]) -> Counters:
        """What a class of an end has sent and dropped; nothing where there is no such class."""
        shown = await self._run(self.tc, end, ["-s", "class", "show", "dev", end.interface], log)
        for text in shown.split("class htb ")[1:]:
            found = _SENT.search(text)
            if text.startswith(f"{HANDLE}{minor:x} ") and found is not None:
                return Counters(sent=int(found[1]), dropped=int(found[2]))
        return Counters(sent=0, dropped=0)

    async def shape(self, end: End, lines: Iterable[str], log: Callable[[str], None]) -> None:
        """Have ``tc`` carry out commands, in order, until one fails."""
        await self._batch(self.tc, end, list(lines), log)

    async def address(self, end: End, lines: Iterable[str], log: Callable[[str], None]) -> None:
        """Have ``ip`` carry out commands, in order, until one fails."""
        await self._batch(self.ip, end, list(lines), log)

    async def _batch(self, program: str, end: End, lines: Sequence[str], log: Callable[[str], None]) -> None:
        if lines:
            await self._run(program, end, ["-batch", "-"], log, "".join(f"{line}\n" for line in lines))

    async def _run(
        self, program: str, end: End, words: Sequence[str], log: Callable[[str], None], given: str = ""
    ) -> str:
        said: list[str] = []

        def hear(line: str) -> None:
            said.append(line)
            log(f"{Path(program).name}: {line}")

        inside = ["-n", end.namespace] if end.namespace else []
        run = Run(
            command=(program, *inside, *words),
            directory=Path("/"),
            environment={"PATH": SEARCH, "LC_ALL": "C"},
            given=given.encode(),
            grace=_GRACE,
            log=hear,
            what=f"end {end}: {Path(program).name}",
        )
        try:
            return (await run.output()).decode("utf-8", "replace")
        except DriverError as error:
            raise _explained(error, end, " ".join(said)) from error

    def _json(self, text: str, end: End) -> list[dict[str, Any]]:
        try:
            found: list[dict[str, Any]] = json.loads(text or "[]")
        except ValueError as error:
            raise SiteFaultError(f"end {end}: iproute2 wrote something else than JSON", retry=False) from error
        return [entry for entry in found if entry]


def _explained(error: DriverError, end: End, said: str) -> DriverError:
    """The error in words that say what to do, where it is a known one; another try may help with the others."""
    if any(words in said for words in _GONE):
        return NoEndError(f"end {end} is not there: {said[:200]}")
    if "kind is unknown" in said:
        return NoQueueError(str(error), retry=False)
    if "Operation not permitted" in said or "Permission denied" in said:
        return SiteFaultError(f"end {end}: this process must not shape it: start the daemon as root", retry=False)
    return SiteFaultError(f"{error} ({said[:300]})" if said not in str(error) else str(error))


def _minor(parent: str) -> int:
    return int(parent.removeprefix(HANDLE), 16)


def _filters(rules: Sequence[dict[str, Any]]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for rule in rules:
        minors = found.setdefault(rule["pref"], [])
        flow = rule.get("options", {}).get("flowid", "")
        if flow.startswith(HANDLE):
            minors.append(_minor(flow))
    return found
