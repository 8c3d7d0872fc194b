"""A guest's drivers that work on units by ssh, with a real ssh server and real Ansible."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from system.packages import SSH, require, require_root
from system.ssh_server import SshServer, ssh_server
from system.system_waits import wait_until

from leasekit.core.drivers import Driver, DriverError, UnitContext
from leasekit.drivers.commands import abandoned, mark_of
from leasekit.drivers.registry import make_driver

HOSTILE = {
    "quotes": "a'b\"c`d",
    "shell": "$(touch pwned); touch pwned & `touch pwned` | touch pwned",
    "text": "one\ntouch pwned\n",
    "path": "../../etc/passwd",
    "template": "{{ lookup('pipe', 'touch pwned') }}{% raw %}",
    "unicode": "naïve ☃ \u202e",
    "key's $(id)": "odd key",
}
"""Properties as nobody should have them."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    require_root()
    require(SSH)
    with ssh_server(tmp_path_factory.mktemp("server")) as made:
        yield made


@pytest.fixture
def lines() -> list[str]:
    return []


def make_unit(server: SshServer, lines: list[str], op: str = "join", **properties: str) -> UnitContext:
    return UnitContext(
        unit="web/vm-1", type="vm", lease="web", op=op, number=7, properties={**server.properties, **properties},
        log=lines.append,
    )  # fmt: skip


def make(kind: str, server: SshServer, folder: Path, **scripts: str) -> Driver:
    """A driver with these scripts or playbooks."""
    for name, text in scripts.items():
        (folder / name).write_text(text)
    settings: dict[str, Any] = {"key": str(server.key), **{name: name for name in scripts}}
    return make_driver(kind, settings, kind, base=folder)


async def test_scripts_run_on_the_unit(server, lines, tmp_path):
    """A join's script runs on the unit with its properties, tells properties of its own and what it has to say; a
    leave's undoes it; a probe says whether the unit still lets its holder in.
    """
    join = 'echo "hello $LEASEKIT_UNIT" >&2; echo "$LEASEKIT_SIZE" >member; echo "{\\"home\\": \\"$PWD\\"}"'
    driver = make("ssh", server, tmp_path, join=join, leave="rm member", probe="test -f member")
    assert await driver.join(make_unit(server, lines, size="large")) == {"home": "/root"}
    assert lines == ["hello web/vm-1"]
    assert (server.home / "member").read_text() == "large\n"
    assert (await driver.probe(make_unit(server, lines, "probe"))).state == "up"
    await driver.leave(make_unit(server, lines, "leave"))
    assert not (server.home / "member").exists()
    assert (await driver.probe(make_unit(server, lines, "probe"))).state == "down"


async def test_properties_are_never_commands(server, lines, tmp_path):
    """Properties with quotes, line ends, commands and other scripts' letters arrive on the unit as they are."""
    show = 'printf "%s|" "$LEASEKIT_QUOTES" "$LEASEKIT_SHELL" "$LEASEKIT_TEXT" "$LEASEKIT_PATH" "$LEASEKIT_TEMPLATE" '
    driver = make("ssh", server, tmp_path, join=f'{show} "$LEASEKIT_UNICODE" >shown')
    await driver.join(make_unit(server, lines, **HOSTILE))
    wanted = [HOSTILE[key] for key in ("quotes", "shell", "text", "path", "template", "unicode")]
    assert (server.home / "shown").read_text() == "".join(f"{text}|" for text in wanted)
    assert not (server.home / "pwned").exists()
    with pytest.raises(DriverError, match="unit id: found"):
        await driver.join(attrs.evolve(make_unit(server, lines), unit="web/$(touch pwned)"))


@pytest.mark.parametrize("kind", ["ssh", "ansible"])
async def test_another_server_in_its_place(kind, server, lines, tmp_path):
    """A server with another host key than the site told is not spoken to: the join fails, and may pass later."""
    other = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBg5cVzR1YpFLVyT0ZzFzHFYfQ3c9Zl1PjW0Yx7w0b3D"
    join = "touch joined" if kind == "ssh" else "[{hosts: unit, gather_facts: false, tasks: [{raw: touch joined}]}]"
    driver = make(kind, server, tmp_path, join=join)
    with pytest.raises(DriverError, match="join: join "):
        await driver.join(make_unit(server, lines, host_key=other))
    assert "Host key verification failed" in "\n".join(lines)
    assert not (server.home / "joined").exists()


async def test_a_script_that_fails(server, lines, tmp_path):
    """The exit status of a script decides: 75 and a lost connection may pass, all else is a failure with its last
    line.
    """
    for status, retry in (("75", True), ("3", False)):
        driver = make("ssh", server, tmp_path, join=f"echo no room >&2; exit {status}")
        with pytest.raises(DriverError, match=f"ended with exit status {status}: no room") as caught:
            await driver.join(make_unit(server, lines))
        assert caught.value.retry == retry
    driver = make("ssh", server, tmp_path, join="true")
    with pytest.raises(DriverError, match="Connection refused") as caught:
        await driver.join(make_unit(server, lines, port="1"))
    assert caught.value.retry


PLAYBOOK = """
- hosts: unit
  gather_facts: false
  tasks:
    - raw: "cat >member <<'end'\\n{{ leasekit.op }} {{ leasekit.unit }} {{ leasekit.properties.size }}\\nend"
    - debug:
        msg: "{{ leasekit.properties.template }}"
"""
LEAVING = "[{hosts: unit, gather_facts: false, tasks: [{raw: rm member}]}]"


async def test_playbooks(server, lines, tmp_path):
    """A playbook runs with the unit as its host and sees its properties, none of which is taken as a template."""
    driver = make("ansible", server, tmp_path, join=PLAYBOOK, leave=LEAVING)
    await driver.join(make_unit(server, lines, size="large", **HOSTILE))
    assert (server.home / "member").read_text() == "join web/vm-1 large\n"
    said = "\n".join(lines)
    assert HOSTILE["template"] in said
    assert not (server.home / "pwned").exists()
    assert not list(tmp_path.rglob("pwned"))
    await driver.leave(make_unit(server, lines, "leave", size="large"))
    assert not (server.home / "member").exists()
    with pytest.raises(DriverError, match="leave: leave ended with exit status 2"):
        await driver.leave(make_unit(server, lines, "leave", size="large"))


ENDLESS = "[{hosts: unit, gather_facts: false, tasks: [{raw: 'echo begun >begun; sleep 3600'}]}]"
KILLED = """
import sys, trio
from pathlib import Path
from leasekit.core.drivers import UnitContext
from leasekit.drivers.registry import make_driver
key, join, *said = sys.argv[1:]
driver = make_driver("ansible", {"key": key, "join": join}, "ansible", base=Path())
properties = dict(zip(said[::2], said[1::2]))
unit = UnitContext(unit="web/vm-1", type="vm", lease="web", op="join", number=1, properties=properties, log=print)
trio.run(driver.join, unit)
"""


async def test_the_play_of_a_killed_guest_is_ended(server, lines, tmp_path):
    """A join whose daemon is killed goes on without it: the next action on the unit ends it first."""
    driver = make("ansible", server, tmp_path, join=ENDLESS, leave=LEAVING.replace("member", "begun"))
    said = [word for pair in server.properties.items() for word in pair]
    daemon = subprocess.Popen([sys.executable, "-c", KILLED, str(server.key), str(tmp_path / "join"), *said])
    mark = mark_of("web/vm-1", "web")
    try:
        wait_until("the join", lambda: "" if (server.home / "begun").exists() else "it has not begun")
        assert mark not in abandoned()
    finally:
        daemon.kill()
        daemon.wait()
    assert mark in abandoned()
    await driver.leave(make_unit(server, lines, "leave"))
    assert mark not in abandoned()
