"""Logging in to a unit: properties of a site that is not trusted never become anything but what they are meant for."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasekit.core.drivers import DriverError
from leasekit.core.settings import SettingsError
from leasekit.drivers.registry import make_driver
from leasekit.drivers.ssh import login_of

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBg5cVzR1YpFLVyT0ZzFzHFYfQ3c9Zl1PjW0Yx7w0b3D"
GOOD = {"host": "10.0.0.7", "host_key": f"{KEY} site@somewhere"}
HOSTILE = [
    "-oProxyCommand=id",
    "a b",
    "$(id)",
    "`id`",
    "a'b",
    'a"b',
    "a\nb",
    "../x",
    "ä",
    "%h",
    "a;b",
    "",
    "fe80::1%eth0",
]


def test_what_a_unit_says_of_itself():
    """Host, port, host key and login name come from the unit's properties; a guest's own login name goes before."""
    login = login_of(GOOD)
    assert (login.host, login.port, login.user, login.host_key) == ("10.0.0.7", 22, "root", KEY)
    assert login.known_hosts() == f"unit {KEY}\n"
    assert login_of({**GOOD, "user": "debian"}).user == "debian"
    assert login_of({**GOOD, "user": "debian"}, "admin").user == "admin"
    for host in ("fd00::7", "vm-7.example.org"):
        assert login_of({**GOOD, "host": host, "port": "2222"}).port == 2222


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("key", ["host", "user", "port", "host_key"])
def test_properties_that_are_something_else(key, text):
    """Whatever is no host, login name, port or key is refused, for good, by an error of one line that names it."""
    with pytest.raises(DriverError, match=f"unit property {key}: found .*, expected") as caught:
        login_of({**GOOD, key: text})
    assert not caught.value.retry
    assert str(caught.value).isprintable()


@given(st.dictionaries(st.sampled_from(["host", "user", "port", "host_key"]), st.text(max_size=60)))
def test_any_properties(properties):
    """Either they are refused, or every word made of them is plain: no blanks, quotes, dashes first or line ends."""
    try:
        login = login_of({**GOOD, **properties})
    except DriverError:
        return
    assert not login.host.startswith("-")
    assert login.host.isascii() and login.host.isprintable() and not set(login.host) & set(" '\"$`;&|<>\\%")
    assert login.known_hosts().count("\n") == 1 and login.known_hosts().count(" ") == 2
    assert all("\n" not in word for word in login.options(Path("/x/known")))


def test_a_host_key_is_needed():
    """Without a host key nobody logs in, unless that is wanted; then no other host is trusted in its place."""
    with pytest.raises(DriverError, match="unit property host_key: found '', expected"):
        login_of({"host": "10.0.0.7"})
    login = login_of({"host": "10.0.0.7"}, strict=False)
    assert login.known_hosts() == ""
    assert "StrictHostKeyChecking=yes" in login.options(Path("/x/known"))


def test_paths_that_ssh_splits(tmp_path):
    """Paths with blanks and percent signs reach ssh whole; those that its options can't hold are refused."""
    options = login_of(GOOD).options(tmp_path / "a b%h")
    assert f'UserKnownHostsFile="{tmp_path}/a b%%h"' in options
    with pytest.raises(DriverError, match="can't be told of a path with quotes"):
        login_of(GOOD).options(tmp_path / 'a"b')


@pytest.mark.parametrize("kind", ["ssh", "ansible"])
def test_files_that_are_not_there(kind, tmp_path):
    """Scripts, playbooks and keys that are not there are all told at once, when the driver is made."""
    settings = {"key": "id", "join": "join.sh", "leave": "leave.sh"}
    with pytest.raises(SettingsError) as caught:
        make_driver(kind, settings, "here", base=tmp_path)
    for key in settings:
        assert f"here.{key}: found" in str(caught.value) or f"{key}: found" in str(caught.value)


@pytest.mark.parametrize("kind", ["ssh", "ansible"])
async def test_drivers_for_guests_refuse_a_sites_work(kind, tmp_path, make_unit, monkeypatch):
    """What a site would ask of a guest's driver is refused, for good."""
    monkeypatch.setattr("shutil.which", lambda program, path=None: f"/usr/bin/{program}")
    for name in ("id", "join"):
        (tmp_path / name).write_text("")
    driver = make_driver(kind, {"key": "id", "join": "join"}, "here", base=tmp_path)
    for op in ("setup", "teardown", "modify"):
        with pytest.raises(
            DriverError, match=f"the {kind} driver is for guests: it can't {op} units at a site"
        ) as caught:
            await getattr(driver, op)(make_unit("u1", op))
        assert not caught.value.retry
    with pytest.raises(DriverError, match=f"{kind} driver: found operation 'restart'"):
        await driver.operate(make_unit("u1", "operate"), "restart", {})
