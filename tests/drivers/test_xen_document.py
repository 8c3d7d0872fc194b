"""What is written for `xl`, and for the shell of a control domain: nothing that a guest says gets out of its quotes."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import attrs
import pytest
from driver_harnesses import Units
from hypothesis import given
from hypothesis import strategies as st

from leasekit.core.drivers import DriverError
from leasekit.core.settings import structure
from leasekit.drivers.libvirt.plan import UnitPlan
from leasekit.drivers.xen import scripts
from leasekit.drivers.xen.document import Files, document, make_plan, quoted
from leasekit.drivers.xen.settings import XenSettings

KEY = "ssh-ed25519 " + "A" * 68
SUM = "0" * 64
HOSTILE = ['"', "'", "\\", '\\"', "$(id)", "`id`", "../up", "a;b", "# c", "x]", "é", "名", '", kernel = "/evil']
STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
"""A string of `xl`'s, as libxlu_cfg_l.l has it."""


def settings(**changes: object) -> XenSettings:
    table = {
        "hosts": {"one": {"address": "192.0.2.1", "identity": "id", "host_key": KEY}},
        "images": {"tiny": {"kernel": {"file": "kernel", "sha256": SUM}, "seed": "none", "ready": "running"}},
        "network": {"bridge": "br0", "subnets": ["192.0.2.0/24"]},
        "choices": {"vcpus": [1, 4], "cap": [0, 400]},
        **changes,
    }
    return structure(XenSettings, table, "xen")


def plan_of(command_line: str = "", **properties: str) -> UnitPlan:
    made = make_plan(Units()("u1", properties=properties), settings())
    return attrs.evolve(made, image=attrs.evolve(made.image, command_line=command_line))


def unquoted(text: str) -> str:
    """A string as `xl` reads it (xlu__cfgl_dequote in libxlu_cfg.c), for the escapes that are written."""
    match = STRING.fullmatch(text)
    assert match is not None, text
    return re.sub(r'\\(["\\])', r"\1", match[1])


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_string_is_read_as_it_was_or_refused(text):
    """Quoted text is one string of `xl`'s, which says the same; text with control characters is refused."""
    if text.isprintable():
        assert unquoted(quoted(text)) == text
    else:
        with pytest.raises(DriverError, match="printable"):
            quoted(text)


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_ends_its_line(text):
    """Whatever stands in a command line or a path, the document has the same keys, each with its own value."""
    files = Files(kernel=f"/images/{text}", initrd=f"/units/{text}", disk=f"/disk{text}", seed="/seed")
    lines = document("leasekit-u1", plan_of(text), "pv", files, "br0").splitlines()
    found = dict(line.split(" = ", 1) for line in lines)
    assert list(found) == [line.split(" = ")[0] for line in lines]
    assert unquoted(found["cmdline"]) == text
    assert unquoted(found["kernel"]) == files.kernel
    disks = [unquoted(f'"{string}"') for string in STRING.findall(found["disk"])]
    assert [disk.partition("target=")[2] for disk in disks] == [files.disk, "/seed"]


def test_a_document_has_what_the_lease_chose():
    """Sizes are the lease's within the site's bounds, and a guest without a kernel is started by pygrub."""
    plan = plan_of(vcpus="2", cap="150", memory_mb="9999")
    found = document("leasekit-u1", plan, "pvh", Files(disk="/d"), "br0").splitlines()
    assert {"vcpus = 2", "maxvcpus = 4", "cap = 150", "memory = 512", 'type = "pvh"', 'bootloader = "pygrub"'} <= set(
        found
    )
    assert f'vif = [ "mac={plan.mac},bridge=br0" ]' in found


@pytest.mark.parametrize(
    "properties",
    [{"vcpus": "5"}, {"vcpus": "1; reboot"}, {"cap": "$(id)"}, {"image": "../../etc"}, {"slice.key": 'command="x" k'}],
    ids=lambda found: next(iter(found)),
)
def test_what_a_lease_may_not_choose_is_refused(properties):
    """A size out of bounds, an image that is not the site's, a key with options: refused by the property's name."""
    with pytest.raises(DriverError, match=f"property {next(iter(properties))}: found") as caught:
        plan_of(**properties)
    assert not caught.value.retry


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), max_size=5))
def test_words_reach_a_shell_as_they_are(words):
    """Whatever the arguments of a script are, the far end's shell takes each as one word."""
    text = shlex.join(["sh", "-c", 'printf "%s\\0" "$@"', "leasekit", *words])
    said = subprocess.run(["sh", "-c", text], capture_output=True, check=True).stdout
    assert said.split(b"\0")[:-1] == ([word.encode() for word in words] or [b""])


@pytest.mark.parametrize("name", sorted(name for name in vars(scripts) if name.isupper()))
def test_scripts_are_scripts(name):
    """Each script, and each within it, is one that the shell can read."""
    subprocess.run(["sh", "-n", "-c", getattr(scripts, name)], check=True)


@pytest.mark.parametrize("text", HOSTILE)
def test_files_are_written_whole_whatever_they_are_called(tmp_path, text):
    """A script writes where it is told, and what it is given, in folders of any name."""
    folder = tmp_path / text.replace("/", "-")
    for script, words in ((scripts.MAKE, ("u1",)), (scripts.WRITE, ("u1", "record.json", str(len(text.encode()))))):
        command = shlex.join(["sh", "-c", script, "leasekit", str(folder), *words])
        subprocess.run(["sh", "-c", command], input=text.encode(), check=True, cwd=tmp_path)
    assert [path.read_text() for path in Path(folder).rglob("*.json")] == [text]
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


@pytest.mark.parametrize("came", ["", "half", "whole and more"])
@pytest.mark.parametrize(("script", "words"), [(scripts.WRITE, []), (scripts.WRITE_INITRD, ["base"])])
def test_input_that_is_not_whole_changes_no_file(tmp_path, script, words, came):
    """What a file was it stays, when the input ends early: its length must be what was said."""
    (tmp_path / "units/u1").mkdir(parents=True)
    (tmp_path / "images").mkdir()
    (tmp_path / "images/base").write_text("early")
    file = tmp_path / "units/u1/initrd"
    file.write_text("before")
    command = ["sh", "-c", script, "leasekit", str(tmp_path), "u1", "initrd", str(len("whole")), *words]
    done = subprocess.run(command, input=came, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, f"{len(came)} of 5 bytes came\n")
    assert file.read_text() == "before"
    subprocess.run(command, input="whole", text=True, check=True)
    assert file.read_text() == ("early\0\0\0whole" if words else "whole")


def test_a_late_wipe_spares_what_was_made_since(tmp_path):
    """Files that were made for a unit while those of an earlier one are overwritten are not removed with them."""
    os.mkfifo(tmp_path / "go")
    shred = tmp_path / "bin/shred"
    shred.parent.mkdir()
    shred.write_text(f'#!/bin/sh\nread line <{tmp_path}/go\nexec /usr/bin/shred "$@"\n')
    shred.chmod(0o755)
    unit = tmp_path / "units/u1"
    unit.mkdir(parents=True)
    (unit / "seed").write_text("a key")
    command = ["sh", "-c", scripts.WIPE, "leasekit", str(tmp_path), "u1", "no", str(tmp_path / "console/guests"), "u1"]
    environment = {"PATH": f"{shred.parent}:{os.environ['PATH']}"}
    with subprocess.Popen(command, env=environment) as process, (tmp_path / "go").open("w") as go:
        unit.rename(tmp_path / "units/gone")
        unit.mkdir()
        (unit / "seed").write_text("another key")
        go.write("\n")
    assert process.returncode == 0
    assert (unit / "seed").read_text() == "another key"
    assert list((tmp_path / "units/gone").iterdir()) == []
