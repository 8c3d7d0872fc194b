"""What nodes are told over HTTP, and which of their words are believed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
from test_baremetal_settings import table

from leasekit.core.settings import structure
from leasekit.drivers.baremetal.records import NodeRecord, State
from leasekit.drivers.baremetal.services import ServedFile, Services
from leasekit.drivers.baremetal.settings import BareMetalSettings

TOKEN = "5ec2e7"
ADDRESS = "10.0.0.20"
SCRIPT = "/mac-02-00-00-00-00-01.ipxe"


class Served:
    """The node n1, as it is served while it is erased."""

    def __init__(self, folder: Path) -> None:
        settings = structure(BareMetalSettings, table(directory=str(folder)), "x")
        self.services = Services(settings)
        self.services.records.load(["n1", "n2"])
        (folder / "environment").mkdir()
        (folder / "environment/initrd").write_bytes(b"initrd")
        self.put("cleaning")

    def put(self, state: State, **changes: Any) -> None:
        """The node is in that state."""
        job = {"token": TOKEN, "offset": 20, "ordered": True, "disk": "/dev/sda", **changes}
        self.services.records.put(NodeRecord(node="n1", state=state, **job))

    @property
    def record(self) -> NodeRecord:
        """What is remembered of it."""
        return self.services.records.get("n1")

    def get(self, path: str) -> ServedFile:
        """What it gets, all of which it takes."""
        answer = self.services.fetch(path, ADDRESS)
        if answer.sent is not None:
            answer.sent()
        return answer

    def spec(self) -> int:
        """The status for what it is to do."""
        return self.get(f"/job/{TOKEN}/spec").status

    def say(self, text: str) -> int:
        """The status for what it says."""
        return self.services.report(TOKEN, ADDRESS, text)


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return Served(tmp_path)


def test_a_job_from_its_start_to_its_end(served):
    """A node that does all that it is to do is believed, and what its disk is called is kept."""
    answer = served.get(SCRIPT)
    assert isinstance(answer.content, bytes) and TOKEN.encode() in answer.content
    assert served.get("/agent/initrd").status == 200
    assert served.record.loaded
    assert served.spec() == 200
    for text in ("busy looking for /dev/sda", "disk serial:A,bytes:4096", "busy erasing /dev/sda", "busy", "done"):
        assert served.say(text) == 200
    assert (served.record.report, served.record.identity) == ("done", "serial:A,bytes:4096")


def test_the_secret_is_told_no_more_once_the_environment_was_fetched(served):
    """What starts at the node's address after the imaging environment went there does not get its secret."""
    assert served.services.fetch("/agent/initrd", "10.0.0.21").sent is not None
    assert served.services.fetch("/agent/initrd", ADDRESS).status == 200
    assert served.get(SCRIPT).status == 200, "an environment that was not fetched whole is fetched again"
    served.get("/agent/initrd")
    assert served.get(SCRIPT).status == 404
    assert served.spec() == 200


def test_who_has_spoken_gets_nothing_twice(served):
    """After the first word neither script nor job are told again, until there is another job."""
    assert served.spec() == served.spec() == 200
    assert served.say("busy looking for /dev/sda") == 200
    assert (served.get(SCRIPT).status, served.spec()) == (404, 404)
    served.services.records.put(attrs.evolve(served.record.with_job(TOKEN), ordered=True))
    assert (served.get(SCRIPT).status, served.spec()) == (200, 200)


@pytest.mark.parametrize(
    "before",
    [[], ["busy erasing /dev/sda"], ["spec"], ["spec", "busy looking for /dev/sda", "disk serial:A,bytes:4096"]],
    ids=["nothing", "no job", "no word", "no erasing"],
)
def test_an_end_is_not_believed_without_its_beginning(served, before):
    """Who says that a disk is erased was told to, and has said that it does: else nothing is written down."""
    for word in before:
        assert (served.spec() if word == "spec" else served.say(word)) == 200
    assert served.say("done") == 403
    assert served.record.report == ""
    assert served.say("failed for another reason") == 200


def test_a_disk_that_is_clean_need_not_be_erased(served):
    """A job without erasing is done without it."""
    served.put("imaging", erase=False, identity="serial:A,bytes:4096", image="one")
    assert served.services.records.change("n1", TOKEN, told=True) is not None
    assert served.say("busy writing the image to /dev/sda") == served.say("done") == 200


def test_who_asks_again_and_again_does_not_put_off_the_end(served):
    """Only the first question of a node that does not speak is heard, and none of one that has spoken."""
    served.get(SCRIPT)
    first = served.services.progress("n1")
    served.get(SCRIPT)
    assert served.services.progress("n1") is first
    served.spec()
    served.say("busy looking for /dev/sda")
    spoken = served.services.progress("n1")
    served.get(SCRIPT)
    assert served.services.progress("n1") is spoken


@pytest.mark.parametrize("text", ["disk", "disk a b", "disk $(reboot)", f"disk {'a' * 401}", "erased", ""])
def test_words_that_no_agent_says(served, text):
    """A report that is none changes nothing."""
    assert served.say(text) == 400
    assert not served.record.heard


def test_who_is_a_node(served):
    """An address is a node's while the node is on."""
    assert served.services._is_node(ADDRESS)
    assert not served.services._is_node("10.0.0.21")
    served.services.records.put(attrs.evolve(served.record, state="dirty"))
    assert not served.services._is_node(ADDRESS)
