"""Power control by IPMI (the program ipmitool, whose password is in its environment, which only the same user can see)
or by commands of the site's own; which of them settings mean; and what `leasekit site doctor` asks of machines'
controllers. Redfish is in a module of its own, as it needs httpx.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from functools import partial
from typing import Final

import trio

from leasekit.core.drivers import DriverError, Finding, SiteFaultError
from leasekit.core.settings import SettingsError
from leasekit.core.time import SECOND, Duration, format_duration
from leasekit.drivers.commands import Command, Run
from leasekit.drivers.files import find_executable
from leasekit.drivers.names import one_line
from leasekit.drivers.power.base import BootDevice, Controller, NoMeter, Order, PowerControl, PowerLimits, PowerState
from leasekit.drivers.power.settings import ControllerSettings, Ipmi, Redfish, Script, read_secret

GRACE: Duration = 2 * SECOND
"""Between SIGTERM and SIGKILL for a command that takes too long."""
_DRAWN: Final = re.compile(rb"[0-9]{1,7}(\.[0-9]{1,6})?")


class ScriptController:
    """A :class:`~leasekit.drivers.power.base.Controller` of one machine."""

    def __init__(self, settings: Script) -> None:
        self._settings = settings
        self._device: BootDevice | None = None
        self.name = f"the command {one_line(settings.on[0], 60)}"

    async def status(self) -> PowerState:
        """Whether the power is on. Raises ``DriverError``."""
        said = (await self._run("status", self._settings.status)).strip()
        if said not in (b"on", b"off"):
            found = one_line(said.decode("utf-8", "replace"), 60)
            raise DriverError(f"{self._settings.status[0]}: found {found!r}, expected on or off", retry=False)
        return "on" if said == b"on" else "off"

    async def order(self, order: Order) -> None:
        """Runs the command for it. Raises ``DriverError``."""
        command: Command = getattr(self._settings, order)
        if not command:
            raise DriverError(f"{self.name}: there is no command {order} in the settings", retry=False)
        await self._run(order, command)

    async def set_boot(self, device: BootDevice) -> None:
        """Runs the command ``boot``, if there is one. Raises ``DriverError``."""
        if self._settings.boot:
            await self._run("boot", (*self._settings.boot, device))
        self._device = device

    async def boot_device(self) -> BootDevice | None:
        """What was said last: commands have no way to be asked for it."""
        await trio.lowlevel.checkpoint()
        return self._device

    async def watts(self) -> float:
        """What the command ``meter`` prints, if there is one. Raises ``DriverError``."""
        if not self._settings.meter:
            await trio.lowlevel.checkpoint()
            raise NoMeter(self.name, "there is no command meter in the settings")
        said = (await self._run("meter", self._settings.meter)).strip()
        if _DRAWN.fullmatch(said) is None or not float(said):
            found = one_line(said.decode("utf-8", "replace"), 60)
            raise DriverError(f"{self._settings.meter[0]}: found {found!r}, expected watts, more than 0", retry=False)
        return float(said)

    async def _run(self, what: str, command: Command) -> bytes:
        settings = self._settings
        search = os.environ.get("PATH", os.defpath)
        try:
            program = find_executable(command[0], settings.directory, search)
        except ValueError as error:
            raise SiteFaultError(f"{what}: {error}", retry=False) from error
        run = Run(
            command=(str(program), *command[1:]),
            directory=settings.directory,
            environment={"PATH": search},
            given=b"",
            grace=GRACE,
            log=_nowhere,
            what=f"{what}: {command[0]}",
        )
        with trio.move_on_after(settings.answer_timeout / SECOND):
            return await run.output()
        raise DriverError(f"{what}: {command[0]} took longer than {format_duration(settings.answer_timeout)}")


def _nowhere(_: str) -> None:
    """The last line is in the error, where there is one."""


PASSWORD_MAX: Final = 20
"""The longest password that IPMI 2.0 has, in bytes (section 22.30)."""

_ORDERS: Final[dict[Order, str]] = {"on": "on", "off": "off", "soft_off": "soft"}
_DEVICES: Final[dict[BootDevice, str]] = {"network": "pxe", "disk": "disk"}
_FLAGS: Final[dict[str, BootDevice]] = {"Force PXE": "network", "Force Boot from default Hard-Drive": "disk"}
_STATUS: Final = re.compile(r"Chassis Power is (on|off)")
_KEEP_FLAGS: Final = ("0x00", "0x08", "0x03", "0x08")
"""Set System Boot Options (IPMI 2.0, section 28.12), parameter 3: no order within 60 seconds does not clear the boot
flags. As bytes, for ipmitool's own words for it read the parameter first, which not all controllers have.
"""
_VALID: Final = "Boot Flag Valid"
_BOOT: Final = re.compile(r"Boot Device Selector : (.*)")
_WATTS: Final = re.compile(r"Instantaneous power reading: +([0-9]+) Watts")
"""The state that is printed with it, activated or not, says nothing: some firmware reads well and says it does not."""
_NO_DCMI: Final = re.compile(r"DCMI request failed because: .*\((c1|cb|cc|d4)\)|valid DCMI command was not returned")
"""Answers that will be the same another time: an unknown command or parameter, no such sensor, no privilege for it."""
_REFUSED: Final = re.compile(r"RAKP 2 (HMAC is invalid|message indicates an error)|[Uu]nauthorized|[Ii]nvalid user")


class IpmiController:
    """A :class:`~leasekit.drivers.power.base.Controller` of one machine."""

    def __init__(self, settings: Ipmi) -> None:
        self._settings = settings
        self.name = f"the BMC at {settings.host} port {settings.port}"

    async def status(self) -> PowerState:
        """Whether the power is on. Raises ``DriverError``."""
        said = await self._ask("chassis", "power", "status")
        found = _STATUS.search(said)
        if found is None:
            raise DriverError(f"{self.name}: asked for the power it said {one_line(said, 100)!r}")
        return "on" if found[1] == "on" else "off"

    async def order(self, order: Order) -> None:
        """Sends the order. Raises ``DriverError``."""
        await self._ask("chassis", "power", _ORDERS[order])

    async def set_boot(self, device: BootDevice) -> None:
        """Sets the boot flags for the next start, whenever that is. Raises ``DriverError``."""
        try:
            await self._ask("raw", *_KEEP_FLAGS)
        except DriverError as error:
            # Not all have that parameter: then an order to start must come within the minute.
            if not error.retry:
                raise
        options = ["options=efiboot"] if self._settings.efi else []
        await self._ask("chassis", "bootdev", _DEVICES[device], *options)

    async def boot_device(self) -> BootDevice | None:
        """What the boot flags say, while they are valid. Raises ``DriverError``."""
        said = await self._ask("chassis", "bootparam", "get", "5")
        found = _BOOT.search(said)
        if found is None or _VALID not in said:
            return None
        return _FLAGS.get(found[1].strip())

    async def watts(self) -> float:
        """What the meter of DCMI reads (version 1.5, section 6.6.1). Raises ``DriverError``."""
        try:
            said = await self._ask("dcmi", "power", "reading")
        except DriverError as error:
            if _NO_DCMI.search(str(error)) is None:
                raise
            raise NoMeter(self.name, str(error).removeprefix(f"{self.name}: ")) from error
        found = _WATTS.search(said)
        if found is None:
            raise DriverError(f"{self.name}: asked for what it draws it said {one_line(said, 100)!r}")
        if not int(found[1]):  # what some firmware says that knows of no sensor
            raise NoMeter(self.name, "DCMI reads 0 watts")
        return float(found[1])

    async def _ask(self, *words: str) -> str:
        settings = self._settings
        password = read_secret(settings.password_file)
        if len(password.encode()) > PASSWORD_MAX:
            text = f"password_file {settings.password_file}: IPMI's passwords have at most {PASSWORD_MAX} bytes"
            raise DriverError(text, retry=False)
        cipher = [] if settings.cipher is None else ["-C", str(settings.cipher)]
        command = ["ipmitool", "-I", "lanplus", "-H", settings.host, "-p", str(settings.port), "-U", settings.user]
        environment = {"PATH": os.environ.get("PATH", os.defpath), "IPMI_PASSWORD": password, "LC_ALL": "C"}
        with trio.move_on_after(settings.answer_timeout / SECOND):
            try:
                done = await trio.run_process(
                    [*command, "-L", settings.privilege, *cipher, "-E", *words],
                    env=environment, stdin=subprocess.DEVNULL, capture_stdout=True, capture_stderr=True, check=False,
                )  # fmt: skip
            except OSError as error:
                text = f"ipmitool can't be run: {error.strerror} (install the package ipmitool)"
                raise SiteFaultError(text, retry=False) from error
            if done.returncode == 0:
                return done.stdout.decode("utf-8", "replace")
            said = one_line((done.stderr or done.stdout).decode("utf-8", "replace"), 200)
            if _REFUSED.search(said) is not None:
                text = f"{self.name}: refused user {settings.user!r} or the password in {settings.password_file}"
                raise DriverError(text, retry=False)
            raise DriverError(f"{self.name}: {said or f'ipmitool ended with exit status {done.returncode}'}")
        raise DriverError(f"{self.name}: no answer within {format_duration(settings.answer_timeout)}")


AT_ONCE = 16
"""How many controllers are asked at the same time."""
ADVICE = "look whether its address, user and password file are right, and whether this host reaches its network"


def make_power(settings: ControllerSettings) -> PowerControl:
    """The power of the machine whose controller the settings name. Raises ``SettingsError`` where httpx is missing."""
    return PowerControl(
        _controller(settings), PowerLimits(order=settings.order_timeout, soft_off=settings.soft_timeout)
    )


def _controller(settings: ControllerSettings) -> Controller:
    if isinstance(settings, Ipmi):
        return IpmiController(settings)
    if isinstance(settings, Redfish):
        try:
            from leasekit.drivers.power.redfish import RedfishController
        except ImportError as error:
            text = f"Redfish needs httpx ({error}): pip install 'leasekit[redfish]'"
            raise SettingsError([text]) from error
        return RedfishController(settings)
    return ScriptController(settings)


async def examine_controllers(controllers: Mapping[str, ControllerSettings]) -> list[Finding]:
    """For each node whether its controller says how its power is, and what it draws; nothing is switched."""
    found: dict[str, Finding] = {}
    limiter = trio.CapacityLimiter(AT_ONCE)

    async def ask(node: str, settings: ControllerSettings) -> None:
        async with limiter:
            found[node] = await _finding(node, settings)

    async with trio.open_nursery() as nursery:
        for node, settings in controllers.items():
            nursery.start_soon(partial(ask, node, settings))
    return [found[node] for node in controllers]


async def _finding(node: str, settings: ControllerSettings) -> Finding:
    what = f"node {node}: power"
    try:
        power = make_power(settings)
        state = await power.status()
    except (DriverError, SettingsError) as error:
        return Finding(what, "missing", str(error), ADVICE)
    try:
        draws = f"{await power.watts():g} W"
    except DriverError as error:
        draws = str(error)
    return Finding(what, "ok", f"its controller answers: the power is {state}; {draws}")
