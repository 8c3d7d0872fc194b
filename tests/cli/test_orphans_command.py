"""What an operator sees of a driver that can't say what is left of old units, and of one that can't tear one down."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_daemons import running

from leasekit.cli import main

pytestmark = pytest.mark.xdist_group("cli_daemons")

DEPLOY = """
deployment.name = "left"
deployment.state = "run"
deployment.create_keys = true

[actor.site]
role = "authority"
listen = ["unix:site.sock"]
[[actor.site.inventory]]
type = "vm"
units = 1
driver = "named"
[[actor.site.inventory]]
type = "node"
units = 1
driver = "listed"
[[actor.site.inventory]]
type = "box"
units = 1
driver = "stuck"
[[actor.site.delegation]]
broker = "broker"
type = "box"

[actor.site.driver.named]
kind = "script"
types = ["vm"]
directory = "."
setup = ["true"]
publish.dnsmasq = { folder = "names", pid_file = "dnsmasq.pid" }

[actor.site.driver.listed]
kind = "script"
types = ["node"]
directory = "."
setup = ["true"]
publish.ldap = { url = "ldap://127.0.0.1:1", base = "dc=example,dc=org", site = "lab" }

[actor.site.driver.stuck]
kind = "script"
types = ["box"]
directory = "."
setup = ["true"]
teardown = ["sh", "teardown.sh"]
retries = 0

[actor.broker]
role = "broker"
listen = ["unix:broker.sock"]

[actor.guest]
role = "guest"
"""
UNTOLD = "leasekit: driver listed can't say what is left of old units: "


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Daemons of a site where a name of old-9 is left, and whose LDAP server does not answer."""
    path = tmp_path_factory.mktemp("d") / "leasekit.toml"
    path.write_text(DEPLOY)
    (path.parent / "run").mkdir(mode=0o700)
    (path.parent / "run" / "names").mkdir()
    (path.parent / "run" / "names" / "old-9").write_text("10.0.0.9 old-9\n")
    (path.parent / "run" / "teardown.sh").write_text("test -e gone || { echo 'the host is down' >&2; exit 75; }\n")
    with running(path, os.environ):
        yield path


def _run(file: Path, capfd: pytest.CaptureFixture[str], *line: str) -> tuple[int, str, str]:
    capfd.readouterr()
    status = main.run([*line, "--file", str(file)])
    out, err = capfd.readouterr()
    return status, out, err


def test_what_is_found_is_shown_and_who_cannot_say_is_named(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The site has started, what one driver finds is printed as ever, the other is named with its reason, and the exit
    status says that the list may not be whole; `status` says so, too.
    """
    status, out, err = _run(file, capfd, "site", "orphans", "--json")
    assert (status, [one["unit"] for one in json.loads(out)]) == (1, ["old-9"])
    (line,) = err.splitlines()
    assert line.startswith(UNTOLD) and "ldap://127.0.0.1:1" in line
    status, out, err = _run(file, capfd, "site", "orphans", "--remove", "--unit", "another")
    assert (status, out) == (1, "")
    assert err.splitlines()[0] == "nothing was found"
    assert err.splitlines()[1].startswith(UNTOLD)
    told = _run(file, capfd, "status", "site")
    assert "driver listed can't say what is left of old units" in "".join(told[1:])


def test_a_teardown_that_goes_on_has_its_reason_shown(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A unit whose host is down as its lease ends is still being torn down, with the reason; and is free again soon
    after the host is there.
    """
    asked = ("lease", "request", "box", "1", "--for", "1h", "--name", "web", "--wait")
    assert _run(file, capfd, *asked)[0] == 0
    assert _run(file, capfd, "lease", "close", "web")[0] == 0

    def unit() -> tuple[str, str]:
        (found,) = json.loads(_run(file, capfd, "site", "units", "--type", "box", "--json")[1])
        assert found["state"] != "out", found["reason"]
        return found["state"], found["trouble"]

    while not (seen := unit())[1]:
        pass
    assert seen[0] == "teardown"
    assert seen[1].startswith("teardown fails: ") and "the host is down" in seen[1]
    assert "the host is down" in _run(file, capfd, "site", "units", "--in", "teardown")[1]
    (file.parent / "run" / "gone").touch()
    while (seen := unit())[0] != "free":
        pass
    assert seen == ("free", "")
