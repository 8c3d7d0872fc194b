"""What a command imports: what it needs itself, and nothing that only other commands do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from cli_daemons import Cli, site_and_broker

DEPLOY = site_and_broker("""
[[actor.site.inventory]]
type = "vm"
units = 2
[[actor.site.delegation]]
broker = "broker"
type = "vm"
""")

PRINT_IMPORTED = """
import sys
from leasekit.cli.main import run
assert run(sys.argv[1:]) == 0
print(*sys.modules, file=sys.stderr)
"""
TO_LIST_LEASES = {
    "leasekit.cli.lease_looks",
    "leasekit.cli.main",
    "leasekit.cli.options",
    "leasekit.cli.output",
    "leasekit.cli.places",
    "leasekit.config.instants",
    "leasekit.config.sockets",
    "leasekit.core.errors",
    "leasekit.core.frames",
    "leasekit.core.leases.machine",
    "leasekit.core.time",
    "leasekit.core.reasons",
    "leasekit.runtime.client",
}
FOR_OTHERS = {"asyncio", "attr", "cattrs", "cryptography", "email", "importlib.metadata", "sqlite3", "ssl", "trio"}
"""What only other commands need, and takes long to import."""


def _imported(*words: str) -> set[str]:
    """The modules that are there at the end of a command line which succeeds."""
    command = [sys.executable, "-c", PRINT_IMPORTED, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines()[-1].split())


def test_leases_are_listed_with_few_modules(cli: Cli) -> None:
    """``leasekit lease list`` with a deploy file imports what it needs, not what other commands or daemons do; nor what
    prints tables where none is printed.
    """
    cli("lease request vm 1 --for 1h --name web --wait")
    imported = _imported("lease", "list", "--file", str(cli.file))
    own = {name for name in imported if name.startswith("leasekit.")}
    packages = {name.rpartition(".")[0] for name in own}
    assert own - packages - TO_LIST_LEASES == set()
    assert imported & FOR_OTHERS == set()
    assert "rich" not in _imported("lease", "list", "--file", str(cli.file), "--json")


def test_only_what_is_needed_of_a_file_is_read(cli: Cli, tmp_path: Path) -> None:
    """A running daemon is talked to whatever else of its file is wrong by now; where none runs, that is told."""
    faulty = tmp_path / "leasekit.toml"
    faulty.write_text(f"{cli.file.read_text()}\ncolour = 'green'\n")
    words = ("lease", "list", "--file", str(faulty), "--state")
    assert "leasekit.config.load" not in _imported(*words, str(cli.file.parent / "run"))
    done = subprocess.run(
        [sys.executable, "-m", "leasekit.cli.main", *words, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "actor.guest.colour: found an unknown key" in done.stderr


LATER = {"rich", "pygments", "jinja2", "email.policy"}
"""What no daemon imports before it is needed: for terminals, pages and mail."""


def test_daemons_import_nothing_that_only_some_need() -> None:
    """Nor httpx its own command line, which is for terminals."""
    code = "import sys, leasekit.runtime.daemon, leasekit.gateway.serve, httpx; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert LATER.isdisjoint(done.stdout.split())


def test_an_emulation_without_pictures_has_nothing_that_draws(tmp_path: Path) -> None:
    """An emulation of a deploy file that asks for no picture does not import matplotlib."""
    file = tmp_path / "short.toml"
    load = '[emulation]\nhorizon = "1h"\n[[emulation.run]]\nname = "one"\n'
    file.write_text(f"{DEPLOY}\n{load}")
    assert "matplotlib" not in _imported("emulate", str(file))
