"""An operator's and a holder's commands on units that are up, against real daemons with the process driver."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_daemons import Cli, site_and_broker

from leasekit.cli import main

pytestmark = pytest.mark.xdist_group("cli_daemons")

DEPLOY = site_and_broker("""
[[actor.site.inventory]]
type = "vm"
units = 3
driver = "scripts"
[[actor.site.delegation]]
broker = "broker"
type = "vm"
[actor.site.driver.scripts]
kind = "script"
directory = "."
setup = ["sh", "setup.sh"]
probe = ["sh", "probe.sh"]
operations = { console = ["sh", "console.sh"], restart = ["true"] }
""")
SCRIPTS = {
    "setup": {"host": "-oProxyCommand=touch pwned"},
    "probe": {"load": "0.25", "detail": "fine"},
    "console": {"console": "one\x1b[31m\ntwo"},
}
"""What each script tells."""
FILES = {f"run/{name}.sh": f"cat <<'end'\n{json.dumps(told)}\nend\n" for name, told in SCRIPTS.items()}


@pytest.fixture(scope="module", autouse=True)
def web(file: Path) -> None:
    """A lease of two units."""
    assert main.run(["lease", "request", "vm", "2", "--for", "1h", "--name", "web", "--wait", "-f", str(file)]) == 0


def test_a_unit_is_looked_at(cli: Cli) -> None:
    """A probe is shown with what it measured; one of a unit that is not up is refused."""
    assert cli.json("site probe vm-0") == {"state": "up", "detail": "fine", "measured": {"load": 0.25}}
    assert "0.25" in cli("site probe vm-0")[0]
    _, err = cli("site probe vm-2", 1)
    assert err == "leasekit: no unit 'vm-2' is up here; `leasekit site units` shows those there are\n"


def test_an_operators_actions(cli: Cli) -> None:
    """What the driver can do it does; what it can't is refused with what it can; a console can't steer the terminal."""
    assert cli.json("site operate vm-0 restart how=hard") == {}
    _, err = cli("site operate vm-0 explode", 1)
    assert "found operation 'explode', expected one of: console, restart" in err
    for line in ("site console vm-1", "lease console vm-1", "lease console web/vm-1"):
        assert cli(line)[0] == "one\\x1b[31m\ntwo\n"


def test_a_holder_names_a_unit(cli: Cli) -> None:
    """A unit that is not the holder's, or that may be several, is refused with those that there are."""
    assert cli("lease ssh vm-9", 1)[1] == "leasekit: no unit 'vm-9' is leased; there are: web/vm-0, web/vm-1\n"
    assert "no unit 'web' is leased" in cli("lease console web", 1)[1]


def test_nobody_logs_in_where_a_site_says_nonsense(cli: Cli, tmp_path: Path) -> None:
    """An address that would be an option of ssh is refused, and no command of the site's is run."""
    _, err = cli("lease ssh vm-0", 1)
    assert "unit property host: found '-oProxyCommand=touch pwned', expected" in err
    assert not Path("pwned").exists()


def test_nothing_is_left_of_other_units(cli: Cli) -> None:
    """Where a driver leaves nothing, nothing is listed or removed."""
    assert cli.json("site orphans") == cli.json("site orphans --remove") == []
    assert cli("site orphans")[1] == "there is nothing of units that nobody has\n"
    assert cli.json("status site")[0]["orphans"] == 0


def test_a_unit_that_failed_is_replaced(cli: Cli) -> None:
    """A unit that its operator says has failed gives way to another; one that is not up can't fail."""
    told = cli.json("site fail vm-0 --reason smoke")
    assert (told["state"], told["reason"]) == ("teardown", "smoke")
    while [unit["unit"] for unit in cli.json("lease show web")["units"]] != ["vm-1", "vm-2"]:
        pass
    assert "only one that is active can be said to have failed" in cli("site fail vm-0", 1)[1]
    assert "smoke" in cli("lease history web")[0]


def test_units_are_drained_moved_and_put_back(cli: Cli) -> None:
    """Each step says whose leases are hit; what can't be done is refused, and the operator can go on."""
    cli("site enable vm-0")
    lease = cli.json("lease show web")["id"]
    out, err = cli("site drain vm-1 --move --reason disks")
    assert lease in out and "unit vm-1: its lease gets another one" in out and "1 unit is drained" in err
    while "vm-1" in [unit["unit"] for unit in cli.json("lease show web")["units"]]:
        pass
    (window,) = cli.json("site maintenance list")
    assert window["units"] == ["vm-1"] and "disks" in cli("site maintenance list")[0]
    assert "vm-1 is drained already" in cli("site drain vm-1", 1)[1]
    assert "is in no window, and not drained; those that are: vm-1" in cli("site undrain vm-9 vm-1", 1)[1]
    assert cli("site undrain vm-1")[1] == "vm-1: in service again\n"
    assert cli("site maintenance list")[1] == "no maintenance is announced, and nothing is drained\n"
    assert "only one that is active can be moved" in cli("site move vm-1", 1)[1]


def test_a_lease_is_evicted(cli: Cli) -> None:
    """With notice, by its site; its broker may not, and says who may."""
    lease = cli.json("lease request vm 1 --for 1h --name guest --wait")["id"]
    assert f"leasekit site evict {lease}" in cli(f"broker evict {lease}", 1)[1]
    for words in (f"evict {lease}", "delegate broker vm", "reclaim site/vm@broker"):
        assert cli(f"broker {words} --actor site", 1)[1] == "leasekit: site is an authority, expected a broker\n"
    assert "guest is told" in cli(f"site evict {lease} --at +30m --reason audit")[1]
    while cli.json("lease show guest")["reason"] != "evicted: audit":
        pass
    assert "which is no lease here that goes on (a reservation is known here when" in cli("site evict nobody", 1)[1]
