"""A control domain that is played: `xl` says what the real one said, as ``xen_recorded/calls.json`` keeps it.

The recording was made by running the commands of ``tests/system/xen_recording.py`` in the control domain of a real Xen
4.17 (Debian 12, under QEMU): ``LEASEKIT_RECORD=1 make test-xen`` makes it anew, and ``make test-xen`` compares it with
what a real one says today. The player keeps which domains there are, in a folder of the test's, and picks the recorded
answer of the situation that a command is in: that domain is there, is not there, was there before. Names, ids and sizes
in an answer are exchanged; all else is as it was recorded. Everything but `xl` is real: the shell, files, locks.
"""

from __future__ import annotations

import fcntl
import json
import re
import sys
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parent / "xen_recorded/calls.json"
NAME, OTHER = "recorded-u1", "recorded-none"
ROW = "%-40s %5d %5d %5d     %s  %8.1f"
"""A row of `xl list` (tools/xl/xl_list.c in Xen)."""


class Player:
    """One call of `xl`; ``state`` maps names of domains to what there is of them."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.calls = {call["situation"]: call for call in json.loads(RECORDED.read_text())}
        self.state = state
        self.domains: dict[str, dict[str, int]] = state["domains"]

    def play(self, words: list[str]) -> tuple[str, str, int]:
        """Standard output, standard error and exit status."""
        words = [word for word in words if word != "-q"]
        verb, rest = words[0], words[1:]
        acts = {"list": self.list, "create": self.create, "restore": self.restore, "info": self.info}
        if verb in acts:
            return acts[verb](rest)
        name = rest[1] if verb.startswith("sched-") else rest[0]
        situation = "cap" if verb.startswith("sched-") else verb
        if name not in self.domains:
            return self.said(f"{situation} unknown", name)
        if verb == "migrate" and not self.domains[name]["pv"]:
            return self.migrate(name)
        self.change(verb, name, rest)
        return self.said(situation, name)

    def migrate(self, name: str) -> tuple[str, str, int]:
        """To where it was, as another domain: the recorded move was one from a host to itself."""
        self.add(name, self.domains[name])
        return self.said("migrate pvh", name)

    def said(self, situation: str, name: str = "") -> tuple[str, str, int]:
        """The recorded answer, of another domain."""
        call = self.calls[situation]
        stdout, stderr = (text.replace(NAME, name).replace(OTHER, name) for text in (call["stdout"], call["stderr"]))
        return stdout, stderr, call["status"]

    def info(self, _: list[str]) -> tuple[str, str, int]:
        return self.said("info")

    def list(self, rest: list[str]) -> tuple[str, str, int]:
        if rest == ["-l"]:
            return self.listed_whole()
        header, control, recorded = self.calls["list"]["stdout"].splitlines()
        _, _, _, _, flags, cpu = recorded.split()
        lines = [header, control]
        for name, found in self.domains.items():
            lines.append(ROW % (name, found["id"], found["memory"], found["vcpus"], flags, float(cpu)))
        return "\n".join(lines) + "\n", "", 0

    def listed_whole(self) -> tuple[str, str, int]:
        control, recorded = json.loads(self.calls["list -l"]["stdout"])
        several = [control]
        for name, found in self.domains.items():
            made = json.loads(json.dumps(recorded).replace(NAME, name))
            several.append({**made, "domid": found["id"]})
        return json.dumps(several, indent=4) + "\n", "", 0

    def create(self, rest: list[str]) -> tuple[str, str, int]:
        file = Path(rest[0])
        if not file.exists():
            return self.said("create nothing")
        text = file.read_text()
        name = re.findall(r'^name = "([^"]*)"$', text, re.MULTILINE)[0]
        if name in self.domains:
            return self.said("create again", name)
        numbers = {key: int(number) for key, number in re.findall(r"^(\w+) = (\d+)$", text, re.MULTILINE)}
        found = {key: numbers.get(key, 0) for key in ("memory", "vcpus", "cap")}
        self.add(name, {**found, "pv": int('type = "pv"' in text)})
        return self.said("create", name)

    def restore(self, rest: list[str]) -> tuple[str, str, int]:
        file = Path(rest[0])
        if not file.exists():
            return self.said("restore nothing")
        name, found = json.loads(file.read_text())
        self.add(name, found)
        return self.said("restore", name)

    def add(self, name: str, found: dict[str, int]) -> None:
        self.state["next"] += 1
        self.domains[name] = {**found, "id": self.state["next"]}

    def change(self, verb: str, name: str, rest: list[str]) -> None:
        found = self.domains[name]
        if verb in ("destroy", "save"):
            del self.domains[name]
        if verb == "save":
            Path(rest[1]).write_text(json.dumps([name, found]))
        if verb == "vcpu-set":
            found["vcpus"] = int(rest[1])
        if verb == "mem-set":
            found["memory"] = int(rest[1].removesuffix("m"))
        if "-c" in rest:
            found["cap"] = int(rest[rest.index("-c") + 1])


def main(folder: Path, words: list[str]) -> int:
    """Plays one call with the domains of ``folder``."""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        file = folder / "state.json"
        state = json.loads(file.read_text()) if file.exists() else {"next": 0, "domains": {}}
        stdout, stderr, status = Player(state).play(words)
        beside = folder / "state.new"
        beside.write_text(json.dumps(state))
        beside.replace(file)
        with (folder / "calls").open("a") as calls:
            calls.write(json.dumps(words) + "\n")
    sys.stdout.write(stdout)
    sys.stderr.write(stderr)
    return status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
