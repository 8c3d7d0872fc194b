"""``python deploy/demo.py``: everything that a new user would try, each step checked.

Three daemons run as separate processes from the files in deploy/quickstart, with keys, databases and sockets of their
own. The demo drives them as a user does, with the command ``leasekit``, and asks the units themselves (a unit of the
quickstart is a process that serves on a port) whether what the daemons say is true. Then a month is emulated. The exit
status is 0 only if every step was checked.
"""

from __future__ import annotations

import argparse
import base64
import fcntl
import json
import os
import select
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

import attrs
from jinja2 import Environment, FileSystemLoader
from rich.console import Console

from leasekit.client import Client

HERE: Final = Path(__file__).resolve().parent
ACTORS: Final = ("site", "broker", "guest")
GATEWAY: Final = "web"
PORT: Final = 8770
"""Where the gateway of the quickstart listens; where that is taken the demo has another."""
PAGE: Final = "demo.html.in"
"""What the page of the demo is made from."""
PAGE_PORT: Final = 8771
"""Where that page is served at a terminal; where that is taken it has another."""
MARKER: Final = ".leasekit-demo"
UNITS: Final = 12
TERM: Final = "20s"
"""How long the demo's lease is at first, and is extended; the guest of the quickstart renews 5 s before an end."""
READY_WITHIN: Final = 30.0
"""How long a daemon may take to start, in seconds; it takes about one."""
ANSWER_WITHIN: Final = 300.0
"""How long a command may take, in seconds; the emulated month takes ten, and more on a busy machine."""


class DemoError(Exception):
    """A step did not do what it should; the text says what was expected and what was found."""


def expect(found: Any, expected: Any, what: str) -> None:
    """Raise :class:`DemoError` unless the two are equal."""
    if found != expected:
        raise DemoError(f"{what}: expected {expected!r}, found {found!r}")


@attrs.define
class Daemon:
    """One daemon's process, and where what it says goes."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path


@attrs.define
class Step:
    """A step as the page shows it: it began seconds ``after`` the demo, and is ``ok``, ``failed``, or ``runs``."""

    title: str
    after: float
    took: float = 0.0
    state: str = "runs"
    told: list[str] = attrs.field(factory=list)


@attrs.define
class Report:
    """The page of what the demo did: one file in ``folder`` that needs no other, written anew after each step."""

    folder: Path
    began: float = attrs.field(factory=time.monotonic)
    at: str = attrs.field(factory=lambda: f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC")
    steps: list[Step] = attrs.field(factory=list)
    pictures: list[Path] = attrs.field(factory=list)
    running: bool = True
    pages: str = ""
    """Where the deployment's own pages are, if it runs."""

    @property
    def path(self) -> Path:
        """The file."""
        return self.folder / "page" / "index.html"

    @property
    def took(self) -> float:
        """How long the demo has run, in seconds."""
        return max((step.after + step.took for step in self.steps), default=0.0)

    def write(self) -> None:
        """Have the file say what is so now; who reads it meanwhile has the one before."""
        made = Environment(loader=FileSystemLoader(HERE), autoescape=True).get_template(PAGE).render(
            steps=self.steps, took=self.took, began=self.at, running=self.running, pages=self.pages,
            pictures=[_picture(path) for path in self.pictures],
        )  # fmt: skip
        self.path.parent.mkdir(exist_ok=True)
        draft = self.path.with_suffix(".new")
        draft.write_text(made)
        draft.replace(self.path)


def _picture(path: Path) -> tuple[str, str, str]:
    """A picture as a page has it in itself."""
    return (
        path.stem,
        {".svg": "image/svg+xml", ".png": "image/png"}[path.suffix],
        base64.b64encode(path.read_bytes()).decode(),
    )


class _Quiet(SimpleHTTPRequestHandler):
    """Serves the page, and says nothing of it on the terminal."""

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a folder's page, as long as the block runs."""
    server = ThreadingHTTPServer(("127.0.0.1", free_port(PAGE_PORT)), partial(_Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


class Demo:
    """The daemons of one folder, and the steps that are taken with them."""

    def __init__(self, deploy: Path, folder: Path, console: Console, *, term: str = TERM) -> None:
        self.deploy = deploy
        self.folder = folder.absolute()
        self.console = console
        self.term = term
        self.port = PORT
        self.report = Report(self.folder)
        self.daemons: dict[str, Daemon] = {}
        self._lease: dict[str, Any] = {}
        self._pids: dict[str, int] = {}
        self._history: list[Any] = []

    # -- doing -----------------------------------------------------------------------------------------------------

    def command(self, *arguments: str) -> list[str]:
        """A command line of ``leasekit``."""
        return [sys.executable, "-m", "leasekit.cli.main", *arguments]

    def cli(self, *arguments: str, actor: str = "guest", place: bool = True) -> Any:
        """What ``leasekit ... --json`` prints. Raises :class:`DemoError` if it fails."""
        where = ["--file", str(self.deploy / "quickstart" / f"{actor}.toml"), "--state", str(self.folder)]
        line = self.command(*arguments, *(where if place else ()), "--json")
        try:
            done = subprocess.run(line, capture_output=True, text=True, timeout=ANSWER_WITHIN, check=False)
        except subprocess.TimeoutExpired:
            raise DemoError(f"leasekit {' '.join(arguments)}: not done after {ANSWER_WITHIN:g} s") from None
        if done.returncode != 0:
            raise DemoError(f"leasekit {' '.join(arguments)}: exit status {done.returncode}: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def start(self, name: str, file: Path | None = None) -> None:
        """Start a daemon, from a file of its own or another, and wait until it says that it is ready."""
        log = self.folder / f"{name}.out"
        files = [str(self.deploy / "quickstart" / f"{name}.toml")] if file is None else [str(file), name]
        line = self.command("up", *files, "--state", str(self.folder))
        reader, writer = os.pipe()
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*line, "--ready-fd", str(writer)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[writer],
                start_new_session=True,
            )
        self.daemons[name] = Daemon(name, process, log)
        os.close(writer)
        try:
            if not select.select([reader], [], [], READY_WITHIN)[0] or not os.read(reader, 4096).startswith(b"ready"):
                raise DemoError(f"daemon {name} did not start: {_tail(log)}")
        finally:
            os.close(reader)

    def stop_all(self) -> None:
        """End the daemons that are still running and, if a step has failed, the units, which go on by themselves."""
        for daemon in self.daemons.values():
            if daemon.process.poll() is None:
                daemon.process.terminate()
        for daemon in self.daemons.values():
            try:
                daemon.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                daemon.process.kill()
                daemon.process.wait()
        for pid in self._pids.values():
            if _is_unit(pid, self.folder):
                os.kill(pid, signal.SIGKILL)

    def until(self, what: str, check: Callable[[], bool], within: float = 20.0) -> None:
        """Wait until ``check`` holds: for what no command can wait for."""
        deadline = time.monotonic() + within
        while not check():
            if time.monotonic() > deadline:
                raise DemoError(f"{what}: not so after {within:g} s")
            time.sleep(0.1)

    @contextmanager
    def step(self, title: str) -> Iterator[list[str]]:
        """One step: what is appended to the list is told when it has been checked."""
        begun, told = time.monotonic(), list[str]()
        step = Step(title, begun - self.report.began, told=told)
        self.report.steps.append(step)
        self.report.write()
        with self.console.status(title):
            try:
                yield told
                step.state = "ok"
            except BaseException:
                step.state = "failed"
                self.console.print(f"[bold red]failed[/]  {title}", soft_wrap=True)
                raise
            finally:
                step.took = time.monotonic() - begun
                self.report.write()
        self.console.print(f"[bold green]ok[/] {step.took:6.1f} s  {title}", soft_wrap=True)
        for line in told:
            self.console.print(f"{'':12}{line}", style="dim", markup=False, soft_wrap=True)

    # -- the steps -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Take all steps. Raises :class:`DemoError` at the first that fails."""
        self.make_keys()
        self.start_daemons()
        self.request()
        self.extend_and_kill()
        self.grown()
        self.shrink()
        self.call_gateway()  # in a term that is long: on a busy machine a gateway takes a while to start
        self.modify()
        self.close()
        self.stop_daemons()
        self.emulate()

    def make_keys(self) -> None:
        """Each actor has a key of its own, which only its owner can read."""
        with self.step("make a key for each actor, and check the deploy files") as told:
            made = self.cli("keys", "new", *(str(self.folder / "keys" / f"{n}.key") for n in ACTORS), place=False)
            expect(len({key["public"] for key in made}), len(ACTORS), "different keys")
            for key in made:
                expect(Path(key["file"]).stat().st_mode & 0o777, 0o600, f"mode of {key['file']}")
                told.append(f"{key['name']}: {key['fingerprint']}")
            for name in ACTORS:
                file = self.deploy / "quickstart" / f"{name}.toml"
                found = self.cli("config", "check", str(file), "--state", str(self.folder), place=False)
                expect(found, [], f"faults in {file}")

    def start_daemons(self) -> None:
        """Three processes, connected to each other; the broker holds what the site has delegated."""
        with self.step("start site, broker and guest, each a process of its own") as told:
            for name in ACTORS:
                self.start(name)
            pids = {name: self.cli("status", actor=name)[0]["pid"] for name in ACTORS}
            expect(pids, {name: daemon.process.pid for name, daemon in self.daemons.items()}, "process ids")
            self.until("all are connected to their peers", lambda: all(map(self._connected, ACTORS)))
            self.until("the broker has the site's delegation", lambda: self._free_at_broker() == UNITS)
            told.append(", ".join(f"{name} is process {pid}" for name, pid in pids.items()))
            told.append(f"the site has delegated {UNITS} units to the broker")

    def _connected(self, name: str) -> bool:
        peers = self.cli("status", actor=name)[0]["peers"]
        return bool(peers) and all(peer["connected"] for peer in peers)

    def _free_at_broker(self) -> int:
        return sum(source["free_now"] for source in self.cli("broker", "sources", actor="broker"))

    def request(self) -> None:
        """4 units are set up by the site and joined by the guest, and they are what they say."""
        with self.step(f"lease 4 units for {self.term}: ticket, lease, setup, join") as told:
            self._lease = self.cli("lease", "request", "vm", "4", "--for", self.term, "--name", "web", "--wait")
            told += self._check_units(4)
            chain = self.cli("ticket", "show", "--lease", "web")
            expect([claim["holder_name"] for claim in chain["chain"]], ["broker", "guest"], "holders in the ticket")
            expect(chain["ok"], True, "soundness of the ticket")
            told.append("its ticket: site -> broker -> guest, both signatures verified")

    def extend_and_kill(self) -> None:
        """What was acknowledged survives the kill of the daemon that has the units."""
        with self.step("extend the lease while growing it to 6 units; then SIGKILL the site's daemon") as told:
            self.cli("lease", "extend", "web", "--for", self.term, "--units", "6")
            self._history = self.cli("lease", "history", self._lease["id"], actor="site")
            killed = self.daemons["site"].process
            killed.send_signal(signal.SIGKILL)
            expect(killed.wait(), -signal.SIGKILL, "how the site's daemon ended")
            expect(self._identities(), self._pids, "units after the kill, which go on without it")
            told.append(f"process {killed.pid} is dead; its 4 units go on")
        with self.step("restart the site's daemon: nothing is lost") as told:
            self.start("site")
            history = self.cli("lease", "history", self._lease["id"], actor="site")
            expect(history[: len(self._history)], self._history, "the site's history of the lease")
            here = self.cli("lease", "show", self._lease["id"], actor="site")
            expect(here["state"], "active", "state of the lease at the site")
            expect(set(self._pids) - set(here["units"]), set(), "units that the lease no longer has at the site")
            expect(self._identities(), self._pids, "units after the restart")
            told.append(f"{len(self._history)} transitions and 4 running units, as before; they were not restarted")

    def grown(self) -> None:
        """At the old end the lease has 6 units: the 4 it had, untouched, and 2 more."""
        with self.step("the old term ends: the lease goes on with 6 units") as told:
            before = self._pids
            self.until("the lease has 6 joined units", lambda: self._joined() == 6, within=90)
            self._lease = self.cli("lease", "show", "web")
            told += self._check_units(6)
            kept = {name: pid for name, pid in self._pids.items() if name in before}
            expect(kept, before, "processes of the 4 units that stay")

    def shrink(self) -> None:
        """At the end of the term the two victims are gone, and no others."""
        with self.step("extend again, shrinking to 4 units and naming the victims") as told:
            victims = sorted(self._pids)[:2]
            stay = {name: pid for name, pid in self._pids.items() if name not in victims}
            options = [word for victim in victims for word in ("--victim", victim)]
            self._lease = self.cli("lease", "extend", "web", "--for", "10m", "--units", "4", *options, "--wait")
            told += self._check_units(4)
            expect(self._pids, stay, "processes of the units that stay")
            self.until("the victims are free", lambda: self._states(victims) == {"free"})
            told.append(f"{' and '.join(victims)} are gone")

    def call_gateway(self) -> None:
        """A program that knows nothing of leasekit sees the lease, and one that does asks what it could have."""
        with self.step("start the gateway; ask it by curl, and by leasekit's client") as told:
            self.start(GATEWAY, self.gateway_file())
            url = f"http://127.0.0.1:{self.port}"
            shown = json.loads(self.curl(f"{url}/api/v1/leases/web"))
            expect((shown["id"], shown["state"], shown["units"]), (self._lease["id"], "active", 4), "the lease by curl")
            told.append(f"curl {url}/api/v1/leases/web: {shown['state']}, {shown['units']} units at {shown['site']}")
            with Client(url) as client:
                answer = client.dry_run("vm", UNITS + 1, hours=1)
            expect((answer.status, answer.code), ("refused", "too_large"), f"the broker's word on {UNITS + 1} units")
            told.append(f"Client.dry_run('vm', {UNITS + 1}, hours=1): {answer.status}: {answer.reason}")

    def gateway_file(self) -> Path:
        """The quickstart's file, with the gateway at a port that is free now."""
        self.port = free_port(PORT)
        whole = (self.deploy / "quickstart" / "all.toml").read_text()
        file = self.folder / "gateway.toml"
        file.write_text(whole.replace(f"127.0.0.1:{PORT}", f"127.0.0.1:{self.port}"))
        return file

    @staticmethod
    def curl(url: str) -> str:
        """What curl prints of an address (where it is not installed: what is there). Raises :class:`DemoError`."""
        if shutil.which("curl") is None:
            with urlopen(url, timeout=ANSWER_WITHIN) as answer:
                return str(answer.read().decode())
        done = subprocess.run(["curl", "-sS", url], capture_output=True, text=True, timeout=ANSWER_WITHIN, check=False)
        if done.returncode != 0:
            raise DemoError(f"curl {url}: exit status {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def modify(self) -> None:
        """In mid-term, units and configuration change."""
        with self.step("modify it in mid-term: 5 units, and another configuration") as told:
            before = self._pids
            self._lease = self.cli("lease", "modify", "web", "--units", "5", "--wait")
            told += self._check_units(5)
            expect({name: self._pids.get(name) for name in before}, before, "processes of the units that stay")
            self._lease = self.cli("lease", "modify", "web", "--config", "colour=blue", "--wait")
            for name in self._units():
                configured = self._ask(name, "config")["properties"].get("colour")
                expect(configured, "blue", f"what unit {name} says of its configuration")
            told.append("all 5 say that their colour is blue")

    def close(self) -> None:
        """Nothing is left: no process, no unit, and the rest of the time is the broker's again."""
        with self.step("close the lease: units leave and are torn down, unused time goes back") as told:
            pids = self._pids
            closed = self.cli("lease", "close", "web", "--wait")
            expect((closed["state"], closed["units"]), ("closed", []), "the lease at the guest")
            left = [pid for pid in pids.values() if _is_unit(pid, self.folder)]
            expect(left, [], "processes of its units")
            expect({unit["state"] for unit in self.cli("site", "units", actor="site")}, {"free"}, "units at the site")
            self.until("the broker has the rest of the time back", lambda: self._free_at_broker() == UNITS)
            told.append(f"the site has {UNITS} free units, the broker {UNITS} to give")

    def stop_daemons(self) -> None:
        """Daemons end on SIGTERM, and their databases say what happened."""
        with self.step("stop the daemons, and look into their databases") as told:
            for name, daemon in self.daemons.items():
                daemon.process.terminate()
                expect(daemon.process.wait(timeout=20), 0, f"exit status of {name}")
            for name in ACTORS:
                path = self.folder / f"{name}.db"
                with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
                    (healthy,) = database.execute("PRAGMA integrity_check").fetchone()
                    query = "SELECT state FROM leases WHERE id = ?"
                    (state,) = database.execute(query, (self._lease["id"],)).fetchone()
                    (count,) = database.execute("SELECT count(*) FROM log").fetchone()
                expect((healthy, state), ("ok", "closed"), f"{path}: integrity, and state of the lease")
                told.append(f"{path.name}: {count} transitions")

    def emulate(self) -> None:
        """A month of two guests on two sites."""
        with self.step("emulate a month of two guests on two sites, in virtual time") as told:
            out = self.folder / "month"
            summary = self.cli(
                "emulate", str(self.deploy / "emulation" / "month.toml"), "--synthetic", "--out", str(out), place=False
            )
            (run,) = summary["runs"]
            for name, guest in run["guests"].items():
                if not (guest["mean_leased"] > 0 and guest["rmse"] > 0 and 0 < guest["fidelity"] <= 1):
                    raise DemoError(f"guest {name}: found {guest}, expected leased units, an rmse and a fidelity")
                told.append(
                    f"{name}: {guest['mean_leased']:.1f} nodes leased on average for a demand of "
                    f"{guest['mean_demand']:.1f}, rmse {guest['rmse']:.1f}, fidelity {guest['fidelity']:.3f}"
                )
            pictures = [out / name for name in summary["pictures"]]
            expect([path for path in pictures if not path.stat().st_size], [], "empty pictures")
            expect({path.suffix for path in pictures}, {".png", ".svg"}, "kinds of pictures")
            told.append(f"{run['events']} events in {run['measured']['wall_s']:.1f} s")
            self.report.pictures = [path for path in pictures if path.suffix == ".svg"]

    def go_on(self) -> str:
        """Have the deployment run once more, for who looks at its pages: their address."""
        for name in ACTORS:
            self.start(name)
        self.until("all are connected to their peers", lambda: all(map(self._connected, ACTORS)))
        self.until("the broker has the site's delegation", lambda: self._free_at_broker() == UNITS)
        self.start(GATEWAY, self.gateway_file())
        self.cli("lease", "request", "vm", "3", "--for", "1h", "--name", "demo")
        self.report.pages = f"http://127.0.0.1:{self.port}/"
        self.report.write()
        return self.report.pages

    # -- what the units say ----------------------------------------------------------------------------------------

    def _units(self) -> dict[str, dict[str, str]]:
        """Properties of each unit of the lease, as it was last shown."""
        return {unit["unit"]: unit["properties"] for unit in self._lease["units"]}

    def _joined(self) -> int:
        return sum(unit["state"] == "joined" for unit in self.cli("lease", "show", "web")["units"])

    def _states(self, units: Sequence[str]) -> set[str]:
        return {unit["state"] for unit in self.cli("site", "units", actor="site") if unit["unit"] in units}

    def _ask(self, unit: str, line: str) -> Any:
        properties = self._units()[unit]
        address = (properties["host"], int(properties["port"]))
        with socket.create_connection(address, timeout=10) as connection, connection.makefile("rwb") as stream:
            stream.write(f"{line}\n".encode())
            stream.flush()
            return json.loads(stream.readline())

    def _identities(self) -> dict[str, int]:
        """The process ids of the units, which say themselves that they belong to the lease."""
        pids = {}
        for name in self._units():
            identity = self._ask(name, "identity")
            expect((identity["unit"], identity["lease"]), (name, self._lease["id"]), f"what unit {name} says")
            pids[name] = identity["pid"]
        return pids

    def _check_units(self, count: int) -> list[str]:
        """The lease is active and all of its units have joined and are what they should be."""
        expect(self._lease["state"], "active", "state of the lease")
        expect([unit["state"] for unit in self._lease["units"]], ["joined"] * count, "its units")
        self._pids = self._identities()
        return [f"{count} units have joined: {', '.join(sorted(self._pids))}"]


def free_port(wanted: int) -> int:
    """This port of the loopback, or any where it is taken."""
    with closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError:
            probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _is_unit(pid: int, folder: Path) -> bool:
    """Whether a process is a unit of this demo: it is alive and runs where such units do."""
    try:
        return Path(f"/proc/{pid}/cwd").readlink().is_relative_to(folder)
    except OSError:
        return False


def _tail(log: Path, lines: int = 5) -> str:
    text = log.read_text(errors="replace").strip() if log.exists() else ""
    return " / ".join(text.splitlines()[-lines:]) or "it said nothing"


def fresh(folder: Path) -> None:
    """Make the folder anew. Raises :class:`DemoError` if what is there was not made by a demo, or one is running."""
    if folder.exists():
        if not (folder / MARKER).exists():
            raise DemoError(f"{folder} exists and was not made by a demo: name another one with --folder")
        running = [path.stem for path in folder.glob("*.lock") if _is_locked(path)]
        if running:
            raise DemoError(f"{folder} is in use by the daemons {', '.join(running)} of another demo: stop them first")
        shutil.rmtree(folder)
    folder.mkdir(mode=0o700, parents=True)
    (folder / MARKER).touch()


def _is_locked(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _say_what_is_left(console: Console, demo: Demo, took: float) -> None:
    """What one can look at afterwards."""
    console.print(f"\nAll steps checked in {took:.0f} s. What is left to look at:")
    where = demo.folder
    for what, path in (
        ("what it did, as a page", f"{demo.report.path}"),
        ("pictures, CSV files, summary", f"{where}/month/"),
        ("databases", f"{where}/{{{','.join(ACTORS)}}}.db"),
        ("logs", f"{where}/logs/"),
    ):
        console.print(f"  {what:<30} {path}", soft_wrap=True, markup=False)


def _stay(console: Console, demo: Demo, address: str) -> None:
    """Have the pages be there until Ctrl-C."""
    pages = demo.go_on()
    console.print(f"\nServed until Ctrl-C: what it did at {address}, the deployment at {pages}", soft_wrap=True)
    with suppress(KeyboardInterrupt):
        threading.Event().wait()


def main() -> int:
    """Run the demo; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python deploy/demo.py", description=(__doc__ or "").split("\n\n")[1])
    parser.add_argument("--deploy", type=Path, default=HERE, help="where the deploy files are [beside this program]")
    parser.add_argument("--folder", type=Path, default=Path("demo-run"), help="where all it makes goes [demo-run]")
    parser.add_argument("--term", default=TERM, help=f"how long the lease is at first [{TERM}]")
    options = parser.parse_args()
    console = Console(highlight=False)
    begun = time.monotonic()
    live = sys.stdout.isatty()
    try:
        fresh(options.folder)
        demo = Demo(options.deploy, options.folder, console, term=options.term)
        with served(demo.report.path.parent) if live else nullcontext("") as address:
            try:
                if live:
                    console.print(f"What is done shows at {address}\n", soft_wrap=True)
                try:
                    demo.run()
                finally:
                    demo.report.running = False
                    demo.report.write()
                _say_what_is_left(console, demo, time.monotonic() - begun)
                if live:
                    _stay(console, demo, address)
            finally:
                demo.stop_all()
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
