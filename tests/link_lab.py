"""Network namespaces and links between them for tests of shaped traffic, and real TCP transfers across.

Needs the superuser's rights. Names have this process's id in them, so that tests may run side by side.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
from system.packages import NETWORK, require, require_root

_NUMBERS = itertools.count()

SENDER = """
import socket, sys
socket.setdefaulttimeout(20)
stream = socket.create_connection((sys.argv[1], 5001), source_address=(sys.argv[2], 0))
try:
    while True:
        stream.sendall(bytes(65536))
except OSError:
    pass
"""

RECEIVER = """
import json, socket, sys, time
listener = socket.create_server((sys.argv[1], 5001), family=socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET)
listener.settimeout(20)
print("ready", flush=True)
stream, _ = listener.accept()
begin, total, samples, said = time.monotonic(), 0, [], False
while time.monotonic() - begin < float(sys.argv[2]):
    total += len(stream.recv(262144))
    at = time.monotonic() - begin
    samples.append((at, total))
    if not said and at > float(sys.argv[2]) / 2:
        said = True
        print("half", flush=True)
print(json.dumps(samples), flush=True)
"""


@attrs.frozen
class Transfer:
    """What arrived: (seconds, bytes so far)."""

    samples: list[tuple[float, int]]

    def mbps(self, begin: float, end: float) -> float:
        """The rate at which data arrived between two moments."""
        inside = [sample for sample in self.samples if begin <= sample[0] <= end]
        (first, before), (last, after) = inside[0], inside[-1]
        return 8e-6 * (after - before) / (last - first)


class Flow:
    """A transfer under way, for ``seconds``."""

    def __init__(self, sender: str, source: str, receiver: str, target: str, seconds: float) -> None:
        run = [sys.executable, "-c"]
        self._receiver = subprocess.Popen(
            ["ip", "netns", "exec", receiver, *run, RECEIVER, target, str(seconds)], stdout=subprocess.PIPE, text=True
        )
        self._expect("ready")
        self._sender = subprocess.Popen(["ip", "netns", "exec", sender, *run, SENDER, target, source])

    def _expect(self, word: str) -> None:
        assert self._receiver.stdout is not None
        assert self._receiver.stdout.readline().strip() == word

    def wait_half(self) -> None:
        """Until half of the time is over."""
        self._expect("half")

    def finish(self) -> Transfer:
        """What arrived in all of the time."""
        output, _ = self._receiver.communicate(timeout=60)
        self._sender.wait(timeout=60)
        return Transfer([tuple(sample) for sample in json.loads(output.splitlines()[-1])])


class LinkLab:
    """Namespaces, and interfaces in them that are connected in pairs; by default two, ``a`` and ``b``, with a link."""

    def __init__(self, *links: tuple[str, str]) -> None:
        require(NETWORK)
        require_root()
        self._mark = f"lk{os.getpid()}-{next(_NUMBERS)}"
        self.links = links or (("a", "b"),)
        self._made: list[str] = []
        try:
            for name in sorted({end for link in self.links for end in link}):
                self.run("ip", "netns", "add", self.namespace(name))
                self._made.append(name)
                self.run("ip", "-n", self.namespace(name), "link", "set", "lo", "up")
                # Addresses of IPv6 that interfaces would give themselves come late, which looks like a leftover.
                self.inside(name, "sysctl", "-qw", "net.ipv4.ip_forward=1")
            for a, b in self.links:
                ends = (self.namespace(a), f"to-{b}", self.namespace(b), f"to-{a}")
                words = ("link", "add", ends[1], "netns", ends[0], "type", "veth", "peer", "name", ends[3])
                self.run("ip", *words, "netns", ends[2])
                for namespace, interface in (ends[:2], ends[2:]):
                    self.run("ip", "-n", namespace, "link", "set", interface, "up")
        except BaseException:
            self.close()
            raise

    def namespace(self, name: str) -> str:
        """The real name of a namespace."""
        return f"{self._mark}-{name}"

    def run(self, *words: str) -> str:
        """What a command prints; it must succeed."""
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
        return done.stdout

    def inside(self, name: str, *words: str) -> str:
        """What a command prints that runs in a namespace."""
        return self.run("ip", "netns", "exec", self.namespace(name), *words)

    def table(self, a: str, b: str, /, **settings: Any) -> dict[str, Any]:
        """What a deploy file says of a link."""
        number = next(n for n, link in enumerate(self.links) if set(link) == {a, b})
        return {
            "a": {"namespace": self.namespace(a), "interface": f"to-{b}"},
            "b": {"namespace": self.namespace(b), "interface": f"to-{a}"},
            "capacity_mbps": 400,
            "subnets": f"10.201.{number}.0/24",
            **settings,
        }

    def settings(self, directory: Path, type_: str, *, link: Mapping[str, Any] | None = None, **more: Any) -> Any:
        """The driver's settings for the first link."""
        return {"directory": str(directory), "links": {type_: self.table(*self.links[0], **(link or {}))}, **more}

    def shaped(self, name: str, to: str) -> str:
        """What ``tc`` shows of an interface: its queues, classes and filters."""
        where = ("-n", self.namespace(name))
        shows = (("qdisc", "show"), ("class", "show"), ("filter", "show"))
        return "".join(self.run("tc", *where, *show, "dev", f"to-{to}") for show in shows)

    def addresses(self, name: str, to: str) -> set[str]:
        """The addresses of an interface, but for those that it gives itself."""
        (found,) = json.loads(self.run("ip", "-n", self.namespace(name), "-j", "addr", "show", "dev", f"to-{to}"))
        return {entry["local"] for entry in found["addr_info"] if entry["scope"] != "link"}

    def leftovers(self) -> list[str]:
        """The queues and addresses of all interfaces that they did not have at first."""
        left = []
        for link in self.links:
            for here, there in (link, link[::-1]):
                shaped = [line for line in self.shaped(here, there).splitlines() if "noqueue" not in line]
                left += shaped + sorted(self.addresses(here, there))
        return left

    def flow(self, a: str, source: str, b: str, target: str, seconds: float) -> Flow:
        """Start to send from an address in one namespace to an address in another."""
        return Flow(self.namespace(a), source, self.namespace(b), target, seconds)

    def close(self) -> None:
        """Removes all of it."""
        for name in self._made:
            self.run("ip", "netns", "del", self.namespace(name))
        self._made.clear()
