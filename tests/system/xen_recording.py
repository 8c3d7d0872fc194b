"""What `xl` says in a real control domain, recorded for the player of ``tests/drivers/xen_player.py``.

The recording is made by ``make test-xen`` with ``LEASEKIT_RECORD=1``: the commands of :data:`SITUATIONS` are run in
this order in the control domain of ``real_xen.py`` (Xen 4.17 of Debian 12 under QEMU), each with nothing on its
standard input, and what it wrote and its exit status are kept as they are. Without the variable the same is done and
compared with what was kept, but for numbers that differ from run to run.
"""

from __future__ import annotations

import json
import re
import shlex
from hashlib import sha256
from pathlib import Path
from typing import Any

from system.real_xen import RealXen

FILE = Path(__file__).parent.parent / "drivers/xen_recorded/calls.json"
NAME, FOLDER = "recorded-u1", "/var/lib/leasekit/recorded"
CONFIG, SAVED, OTHER = f"{FOLDER}/domain.cfg", f"{FOLDER}/saved", "recorded-none"
MOVING = f"{FOLDER}/moving.cfg"

SITUATIONS: dict[str, list[str]] = {
    "info": ["info"],
    "list empty": ["list"],
    "list -l empty": ["list", "-l"],
    "create": ["create", "-q", CONFIG],
    "create again": ["create", "-q", CONFIG],
    "create nothing": ["create", "-q", f"{FOLDER}/nothing.cfg"],
    "list": ["list"],
    "list -l": ["list", "-l"],
    "cap": ["sched-credit2", "-d", NAME, "-c", "30", "-w", "512"],
    "cap unknown": ["sched-credit2", "-d", OTHER, "-c", "30"],
    "caps": ["sched-credit2", "-d", NAME],
    "vcpu-set": ["vcpu-set", NAME, "2"],
    "vcpu-set unknown": ["vcpu-set", OTHER, "2"],
    "mem-set": ["mem-set", NAME, "128m"],
    "mem-set unknown": ["mem-set", OTHER, "128m"],
    "config-update": ["config-update", NAME, CONFIG],
    "save": ["save", NAME, SAVED],
    "save unknown": ["save", OTHER, f"{SAVED}.none"],
    "list saved": ["list"],
    "restore": ["restore", SAVED],
    "restore nothing": ["restore", f"{SAVED}.none"],
    "migrate": ["migrate", NAME, "root@127.0.0.1"],
    "destroy": ["destroy", NAME],
    "destroy unknown": ["destroy", NAME],
    "create pvh": ["create", "-q", MOVING],
    "migrate pvh": ["migrate", NAME, "root@127.0.0.1"],
    "destroy pvh": ["destroy", NAME],
}
"""What is run, by the name of the situation."""

DOCUMENT = """\
name = "{name}"
type = "{type}"
kernel = "{folder}/kernel"
ramdisk = "{folder}/initrd"
cmdline = "console=hvc0 tiny.hang"
vcpus = 1
maxvcpus = 2
memory = 160
maxmem = 160
"""


def record(xen: RealXen, kernel: Path, initrd: Path) -> list[dict[str, Any]]:
    """Runs all that is recorded; the guest is of ``kernel`` and ``initrd``."""
    xen.run(f"mkdir -p {FOLDER}")
    for name, content in (("kernel", kernel), ("initrd", initrd)):
        xen.send(f"cat >{FOLDER}/{name}", content.read_bytes())
    for file, type_ in ((CONFIG, "pv"), (MOVING, "pvh")):
        xen.send(f"cat >{file}", DOCUMENT.format(name=NAME, folder=FOLDER, type=type_).encode())
    calls = []
    for situation, words in SITUATIONS.items():
        done = xen.ssh(xen.address, xen.host_key, shlex.join(["xl", *words]))
        found = {"situation": situation, "argv": words, "stdin_sha256": sha256(b"").hexdigest()}
        calls.append({**found, "stdout": done.stdout, "stderr": done.stderr, "status": done.returncode})
    xen.run(f"xl destroy {NAME} 2>/dev/null; rm -rf {FOLDER}")
    return calls


def keep(calls: list[dict[str, Any]]) -> None:
    """Writes the recording."""
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(json.dumps(calls, indent=1) + "\n")


def kept() -> list[dict[str, Any]]:
    """The recording."""
    found: list[dict[str, Any]] = json.loads(FILE.read_text())
    return found


def shape(call: dict[str, Any]) -> tuple[Any, ...]:
    """What of a call must be the same in each run: all but numbers, states, and how far something got."""
    if call["situation"].startswith("list -l"):
        stdout: Any = _keys(json.loads(call["stdout"]))
    elif call["situation"] == "info":
        stdout = re.findall(r"^(\w+) *:", call["stdout"], re.MULTILINE)
    else:
        stdout = _plain(call["stdout"])
    stderr = _plain(call["stderr"])
    if call["situation"].startswith("migrate"):
        # Both ends write at once, in the middle of each other's lines.
        stderr = {word for line in stderr for word in line.split()}
    return call["situation"], tuple(call["argv"]), call["status"], stdout, stderr


def _plain(text: str) -> set[str]:
    return {re.sub(r"[0-9a-f.]*\d[0-9a-f.]*%?|[rbps-]{6}|\s+", " ", line).strip() for line in text.splitlines()}


def _keys(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _keys(value) for key, value in sorted(content.items())}
    return [_keys(each) for each in content[:1]] if isinstance(content, list) else type(content).__name__
