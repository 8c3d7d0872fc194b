"""What an operator sees of a driver that can't say what is left of old units, and of one that can't tear one down."""

from __future__ import annotations

import json

import pytest
from cli_daemons import Cli, site_and_broker

pytestmark = pytest.mark.xdist_group("cli_daemons")

DEPLOY = site_and_broker("""
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
""")
FILES = {
    "run/names/old-9": "10.0.0.9 old-9\n",
    "run/teardown.sh": "test -e gone || { echo 'the host is down' >&2; exit 75; }\n",
}
UNTOLD = "leasekit: driver listed can't say what is left of old units: "


def test_what_is_found_is_shown_and_who_cannot_say_is_named(cli: Cli) -> None:
    """The site has started, what one driver finds is printed as ever, the other is named with its reason, and the exit
    status says that the list may not be whole; `status` says so, too.
    """
    out, err = cli("site orphans --json", 1)
    assert [one["unit"] for one in json.loads(out)] == ["old-9"]
    (line,) = err.splitlines()
    assert line.startswith(UNTOLD) and "ldap://127.0.0.1:1" in line
    out, err = cli("site orphans --remove --unit another", 1)
    assert out == ""
    assert err.splitlines()[0] == "nothing was found"
    assert err.splitlines()[1].startswith(UNTOLD)
    assert "driver listed can't say what is left of old units" in "".join(cli("status site"))


def test_a_teardown_that_goes_on_has_its_reason_shown(cli: Cli) -> None:
    """A unit whose host is down as its lease ends is still being torn down, with the reason; and is free again soon
    after the host is there.
    """
    cli("lease request box 1 --for 1h --name web --wait")
    cli("lease close web")

    def unit() -> tuple[str, str]:
        (found,) = cli.json("site units --type box")
        assert found["state"] != "out", found["reason"]
        return found["state"], found["trouble"]

    while not (seen := unit())[1]:
        pass
    assert seen[0] == "teardown"
    assert seen[1].startswith("teardown fails: ") and "the host is down" in seen[1]
    assert "the host is down" in cli("site units --in teardown")[0]
    (cli.file.parent / "run" / "gone").touch()
    while (seen := unit())[0] != "free":
        pass
    assert seen == ("free", "")
