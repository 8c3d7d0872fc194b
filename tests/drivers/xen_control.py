"""A control domain of the test's own: a real shell and real files behind what stands for ssh, and a played `xl`."""

from __future__ import annotations

import json
import shlex
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

from leasekit.drivers.registry import make_driver
from leasekit.drivers.xen.driver import XenDriver

PLAYER = Path(__file__).with_name("xen_player.py")
HOST_KEY = "ssh-ed25519 " + "A" * 68
KERNEL = b"a kernel"

# As sshd does: one text for a shell, in a session of its own, which goes on when the connection has ended.
SSH = """\
#!/bin/sh
for last; do :; done
printf '%s\\n' "$*" >>{folder}/ssh.log
exec setsid -w sh -c "$last"
"""


class XenHarness:
    """Units in a folder that stands for the control domain's; what breaks is an image, or a guest that says nothing."""

    PREFIX = "contract-"

    def __init__(self, directory: Path) -> None:
        # All that is made is under `units`, which is where units may leave something while they are there.
        self.directory = directory / "units"
        self.folder, self.console = self.directory / "far/xen", self.directory / "far/console"
        for path in (self.folder, self.console):
            path.mkdir(parents=True)
        (self.directory / "identity").write_text("none is needed\n")
        self.ssh = self.program("ssh", SSH.format(folder=self.directory))
        words = [sys.executable, "-I", "-S", str(PLAYER), str(self.directory)]
        self.xl = self.program("xl", f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        (self.directory / "kernel").write_bytes(KERNEL)
        self.driver = self.make()

    def program(self, name: str, text: str) -> str:
        path = self.directory / name
        path.write_text(text)
        path.chmod(0o755)
        return str(path)

    def settings(self, of: dict[str, Any] | None = None, **settings: Any) -> dict[str, Any]:
        """A driver's table in a deploy file."""
        kernel = {"file": str(self.directory / "kernel"), "sha256": sha256(KERNEL).hexdigest()}
        plain = {"kernel": kernel, "seed": "none", "ready": "running"}
        return {
            "hosts": {"here": self.host()},
            "images": {"tiny": {**plain, **(of or {})}},
            "network": {"bridge": "br0", "subnets": ["192.0.2.0/24", "2001:db8::/64"]},
            "prefix": self.PREFIX,
            "ssh": self.ssh,
            "sessions": 4,
            **settings,
        }

    def host(self, **changes: Any) -> dict[str, Any]:
        given = {"address": "192.0.2.1", "identity": str(self.directory / "identity"), "host_key": HOST_KEY}
        return {**given, "folder": str(self.folder), "console": str(self.console), "xl": self.xl, **changes}

    def make(self, of: dict[str, Any] | None = None, **settings: Any) -> XenDriver:
        made = make_driver("xen", self.settings(of, **settings), "xen")
        assert isinstance(made, XenDriver)
        return made

    def reopen(self) -> XenDriver:
        return self.make()

    def slow(self) -> XenDriver:
        # Nothing serves ssh at an address that is set aside for documentation.
        return self.make({"ready": "ssh"}, start_timeout="1h")

    def failing(self, words: str) -> XenDriver:
        return self.make({"kernel": {"file": str(self.directory / words), "sha256": "0" * 64}})

    def domains(self) -> dict[str, dict[str, int]]:
        """The domains that the player has."""
        file = self.directory / "state.json"
        found: dict[str, dict[str, int]] = json.loads(file.read_text())["domains"] if file.exists() else {}
        return found

    def calls(self) -> list[list[str]]:
        """What `xl` was asked for, in order."""
        file = self.directory / "calls"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def leftovers(self) -> list[str]:
        files = [str(path) for folder in (self.folder / "units", self.console) for path in folder.rglob("*")]
        return [*self.domains(), *files]
