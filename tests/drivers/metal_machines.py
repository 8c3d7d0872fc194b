"""The bare-metal driver under contract: nodes that are network namespaces, with real DHCP, TFTP, HTTP and imaging."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

from system.baremetal_nodes import Nodes, nodes_in
from system.packages import BAREMETAL, require, require_root

from leasekit.core.drivers import Driver
from leasekit.drivers.baremetal.driver import BareMetalDriver
from leasekit.drivers.baremetal.environment import make_environment
from leasekit.drivers.baremetal.settings import Environment

UNITS = ("u1", *(f"unit-{number}" for number in range(20)))
"""The units of the contract's tests; each is a node, and is wired when it is first switched on."""
DISK = 256 * 1024
IMAGE = b"bootable".ljust(64 * 1024, b"\0")


class MetalHarness:
    """Machines that start in a moment. Of the daemons that a test has only one lives at a time: that which it asks."""

    def __init__(self, directory: Path) -> None:
        require_root()
        require((*BAREMETAL, "linux-image-cloud-amd64"))
        directory.mkdir(parents=True)
        self._stack = ExitStack()
        self._living: tuple[_Daemon, BareMetalDriver] | None = None
        self.nodes: Nodes = self._stack.enter_context(nodes_in(directory / "units"))
        for name in UNITS:
            self.nodes.add(name, DISK)
        driver = self.nodes.folder / "driver"
        driver.mkdir()
        # Made once for all tests, for it takes seconds: in the folder that theirs are in.
        environment = directory.parents[1] / "imaging-environment"
        make_environment(Environment(), environment)
        (driver / "environment").symlink_to(environment)
        self.driver = self.make()

    def make(self, **changes: Any) -> Driver:
        image = {"kind": "disk", "disk": self.nodes.artifact("small", IMAGE), "seed": "none"}
        settings = self.nodes.settings(images={"disk": image}, silence="60s", **changes)
        return cast(Driver, _Daemon(self, settings))

    def reopen(self) -> Driver:
        return self.make()

    def slow(self) -> Driver:
        # A machine that never speaks.
        settings = self.nodes.settings()
        for node in settings["nodes"].values():
            node["power"]["on"] = ["true"]
        return self.make(nodes=settings["nodes"], boot_timeout="1h")

    def failing(self, words: str) -> Driver:
        driver = self.make()
        cast(_Daemon, driver).settings["images"]["disk"]["disk"]["file"] = words
        return driver

    def leftovers(self) -> list[str]:
        nodes = self.nodes.nodes
        imaged = [f"the image of {name}" for name, node in nodes.items() if IMAGE[:8] in node.disk.read_bytes()]
        return self.nodes.entries() + imaged + [name for name, node in nodes.items() if node.is_on()]

    def living(self, daemon: _Daemon) -> BareMetalDriver:
        """The driver of a daemon, which is started for it where another one was asked last."""
        if self._living is None or self._living[0] is not daemon:
            self._end()
            self._living = daemon, self.nodes.driver(daemon.settings)
        return self._living[1]

    def _end(self) -> None:
        if self._living is not None:
            self._living[1].close()
            self._living = None

    def close(self) -> None:
        """Ends all that runs, and takes the machines away."""
        self._end()
        self._stack.close()


class _Daemon:
    """Stands for a driver with these settings, which lives while it is asked."""

    def __init__(self, harness: MetalHarness, settings: dict[str, Any]) -> None:
        self._harness = harness
        self.settings = settings

    def __getattr__(self, name: str) -> Any:
        return getattr(self._harness.living(self), name)
