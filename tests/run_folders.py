"""Folders of emulated runs, as `leasekit emulate --out` writes them."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from leasekit.emulation.experiment import run_file

MARKUP = "<img src=x onerror=alert(1)>"
LAB = """
deployment.signatures = false
actor.broker.role = "broker"

[actor.lab]
role = "authority"
inventory = [{{ type = "{type}", units = 4, prefix = "n" }}]
delegation = [{{ broker = "broker", type = "{type}" }}]

[actor.web]
role = "guest"
mapper = {{ name = "load_following", type = "{type}", term = "2h", signal = {{ synthetic = {{}}, peak = 4 }} }}

[emulation]
horizon = "1d"
[[emulation.run]]
name = "{name}"
each = {{ "actor.lab.inventory.0.units" = [2, 4] }}
set = {{ "actor.web.settings" = {{ retry_max = "30s" }} }}
[[emulation.plot]]
kind = "site_usage"
"""


def run_folder(place: Path, type_: str = "node", name: str = "nodes") -> Path:
    """What two runs of a lab with 2 and 4 units have written, below a folder."""
    (place / "lab.toml").write_text(LAB.format(type=type_, name=name))
    run_file(place / "lab.toml", place / "out")
    return place / "out"


@contextmanager
def serving(*words: str) -> Iterator[tuple[str, list[str]]]:
    """The address that a command prints, and what it printed before; Ctrl-C ends it, without another word."""
    line = [sys.executable, "-m", "leasekit.cli.main", *words]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        before, found = list[str](), None
        try:
            for text in process.stdout:
                found = re.search(r"(http://127\.0\.0\.1:\d+/[\w-]{32}/) until Ctrl-C\n$", text)
                if found is not None:
                    break
                before.append(text)
            assert found is not None, before
            yield found[1], before
        finally:
            process.send_signal(signal.SIGINT)
            rest = process.stdout.read()
        assert (process.wait(), rest) == (0, "")
