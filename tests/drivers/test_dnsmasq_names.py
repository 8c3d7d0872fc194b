"""What dnsmasq is told of units: whatever drivers and properties say, a unit's file has a line for each address."""

from __future__ import annotations

import ipaddress
import os
import re
from pathlib import Path

import pytest

from leasekit.core.drivers import DriverError
from leasekit.drivers.directory.entry import make_entry
from leasekit.drivers.directory.names import DnsmasqSettings, HostNames

HOSTILE = [
    "a\n10.0.0.9 www", "a 10.0.0.9", "a,b", "a#b", "a\tb", "a\0b", "A", "é", "-a", "a-", ".a", "a..b", "x" * 64, "a/b",
    "../../etc/hosts", "$(id)", "`id`", "a;b", "a'b", 'a"b', "*", "a\\", "addn-hosts=/etc/shadow", "a\r", "a\x85b",
    "a\u2028b",
]  # fmt: skip
LINE = re.compile(r"[0-9a-f.:]+( [a-z0-9.-]+){1,2}")


@pytest.fixture
def names(tmp_path: Path) -> HostNames:
    """The names of units, in a folder that a dnsmasq which does not run here would read."""
    (tmp_path / "pid").write_text(str(os.getpid()))
    return HostNames(DnsmasqSettings(folder=tmp_path / "names.d", pid_file=tmp_path / "pid"))


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("key", ["hostname", "addresses", "host", "unit", "slice", "holder"])
def test_hostile_words_become_no_line(names, make_unit, tmp_path, key, hostile):
    """A name, or address, that is none is refused with what is allowed, in one line; what is not a name is left out."""
    told = {"hostname": "web-1", "addresses": "10.0.0.1 fd00::1"}
    if key in ("hostname", "addresses"):
        told[key] = hostile
    elif key == "host":
        told = {"hostname": "web-1", "host": hostile}
    unit = make_unit(
        hostile if key == "unit" else "u-1",
        properties={
            "slice.name": hostile if key == "slice" else "s",
            "lease.holder": hostile if key == "holder" else "h",
            "hostname": hostile,
        },
    )
    try:
        entry = make_entry(unit, told)
    except DriverError as error:
        assert str(error).isprintable()
        assert not error.retry
        assert key not in ("slice", "holder")
        return
    assert entry is not None
    names.publish(entry)
    (written,) = (tmp_path / "names.d").iterdir()
    assert written.name == unit.unit
    lines = written.read_text().split("\n")
    assert lines.pop() == ""
    assert lines
    assert all(LINE.fullmatch(line) for line in lines)
    assert [ipaddress.ip_address(line.split()[0]) for line in lines] == list(map(ipaddress.ip_address, entry.addresses))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["names.d", "pid"]
