"""Redfish by httpx, on trio: a few calls are enough (DMTF DSP0266, and the schemas ComputerSystem and Chassis)."""

from __future__ import annotations

import math
import ssl
from collections.abc import Mapping
from typing import Any, Final

import httpx
import trio

from leasekit.core.drivers import DriverError
from leasekit.core.settings import SettingsError
from leasekit.core.time import SECOND, format_duration
from leasekit.drivers.names import one_line
from leasekit.drivers.power.base import BootDevice, NoMeter, Order, Reading
from leasekit.drivers.power.settings import Redfish, read_secret

ALLOWED: Final = "@Redfish.AllowableValues"
SYSTEMS: Final = "/redfish/v1/Systems"

_RESETS: Final[dict[Order, str]] = {"on": "On", "off": "ForceOff", "soft_off": "GracefulShutdown"}
_DEVICES: Final[dict[BootDevice, str]] = {"network": "Pxe", "disk": "Hdd"}
_STATES: Final[dict[str, Reading]] = {"On": "on", "PoweringOff": "going off", "Off": "off", "PoweringOn": "going on"}


class RedfishController:
    """A :class:`~leasekit.drivers.power.base.Controller` of one machine. Raises ``SettingsError`` for a ``ca_file``
    that can't be used.
    """

    def __init__(self, settings: Redfish) -> None:
        self._settings = settings
        self._root = settings.url.rstrip("/").removesuffix("/redfish/v1")
        self._system = settings.system
        self.name = f"the BMC at {self._root}"
        try:
            self._trust = ssl.create_default_context(cafile=settings.ca_file)
        except OSError as error:  # SSLError too
            text = f"ca_file: found {settings.ca_file}, which can't be used: {error.strerror or error}"
            raise SettingsError([text]) from error

    async def status(self) -> Reading:
        """Whether the power is on, or on its way. Raises ``DriverError``."""
        async with self._client() as client:
            found = (await self._machine(client)).get("PowerState")
        if not isinstance(found, str) or found not in _STATES:
            raise DriverError(f"{self.name}: asked for the power it said {str(found)[:60]!r}")
        return _STATES[found]

    async def order(self, order: Order) -> None:
        """Sends the order, if the machine's description has it among what it takes. Raises ``DriverError``."""
        async with self._client() as client:
            machine = await self._machine(client)
            reset = _within(machine, "Actions", "#ComputerSystem.Reset")
            target = reset.get("target")
            if not isinstance(target, str) or not target.startswith("/"):
                raise DriverError(f"{self.name}: the machine has no action ComputerSystem.Reset", retry=False)
            # An unknown type may be taken with a yes and no effect.
            self._check_allowed("ResetType", _RESETS[order], reset.get(f"ResetType{ALLOWED}"))
            await self._call(client, "POST", target, {"ResetType": _RESETS[order]})

    async def set_boot(self, device: BootDevice) -> None:
        """Overrides the next start. Raises ``DriverError``."""
        async with self._client() as client:
            machine = await self._machine(client)
            key = "BootSourceOverrideTarget"
            self._check_allowed(key, _DEVICES[device], _within(machine, "Boot").get(key + ALLOWED))
            tag = machine.get("@odata.etag")
            change = {"Boot": {key: _DEVICES[device], "BootSourceOverrideEnabled": "Once"}}
            await self._call(client, "PATCH", self._system, change, {"If-Match": tag} if isinstance(tag, str) else {})

    async def boot_device(self) -> BootDevice | None:
        """What the next start is overridden by; Continuous counts, for some keep it so. Raises ``DriverError``."""
        async with self._client() as client:
            boot = _within(await self._machine(client), "Boot")
        if boot.get("BootSourceOverrideEnabled") not in ("Once", "Continuous"):
            return None
        for device, name in _DEVICES.items():
            if boot.get("BootSourceOverrideTarget") == name:
                return device
        return None

    async def watts(self) -> float:
        """What the machine's chassis draws, by its EnvironmentMetrics or, of older services, its Power. One that has
        several machines says nothing of any of them. Raises ``DriverError``.
        """
        async with self._client() as client:
            chassis = _paths(_within(await self._machine(client), "Links").get("Chassis"))
            why = "the machine has no chassis"
            for path in chassis:
                table = await self._call(client, "GET", path)
                machines = _paths(_within(table, "Links").get("ComputerSystems"))
                if len(machines) > 1:
                    why = f"its chassis {one_line(path, 80)} has {len(machines)} machines"
                    continue
                why = f"its chassis {one_line(path, 80)} measures no power"
                for read, resource in ((_environment, "EnvironmentMetrics"), (_consumed, "Power")):
                    if where := _paths([table.get(resource)]):
                        found = read(await self._call(client, "GET", where[0]))
                        if found:
                            return found
        raise NoMeter(self.name, why)

    # Calls

    def _client(self) -> httpx.AsyncClient:
        settings = self._settings
        try:
            return httpx.AsyncClient(
                base_url=self._root,
                auth=(settings.user, read_secret(settings.password_file)),
                verify=self._trust,
                timeout=None,
                trust_env=False,
                headers={"OData-Version": "4.0", "Accept": "application/json"},
            )
        except httpx.InvalidURL as error:
            raise self._unsent(error) from error

    async def _machine(self, client: httpx.AsyncClient) -> Mapping[str, Any]:
        if not self._system:
            members = (await self._call(client, "GET", SYSTEMS)).get("Members")
            paths = [member.get("@odata.id") for member in members] if isinstance(members, list) else []
            if len(paths) != 1 or not isinstance(paths[0], str):
                text = f"{self.name}: found {len(paths)} machines, the settings must say which (system)"
                raise DriverError(text, retry=False)
            self._system = paths[0]
        return await self._call(client, "GET", self._system)

    def _check_allowed(self, key: str, wanted: str, allowed: object) -> None:
        if isinstance(allowed, list) and wanted not in allowed:
            names = one_line(", ".join(map(str, allowed)), 200)
            raise DriverError(f"{self.name}: takes no {key} {wanted}, only: {names}", retry=False)

    async def _call(
        self,
        client: httpx.AsyncClient,
        method: str,
        path: str,
        content: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Mapping[str, Any]:
        with trio.move_on_after(self._settings.answer_timeout / SECOND):
            try:
                answer = await client.request(method, path, json=content, headers=headers)
            except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
                raise self._unsent(error) from error
            self._check(answer, method, path)
            return _content(answer)
        raise DriverError(f"{self.name}: no answer within {format_duration(self._settings.answer_timeout)}")

    def _unsent(self, error: Exception) -> DriverError:
        said = one_line(str(error), 200) or type(error).__name__
        # A host, path or header that can't be sent, of the settings or a BMC's own, is the same another time.
        return DriverError(f"{self.name}: {said}", retry=isinstance(error, httpx.HTTPError))

    def _check(self, answer: httpx.Response, method: str, path: str) -> None:
        if answer.status_code in (401, 403):
            settings = self._settings
            text = f"{self.name}: refused user {settings.user!r} or the password in {settings.password_file}"
            raise DriverError(text, retry=False)
        if not answer.is_success:
            text = f"{self.name}: {method} {one_line(path, 80)} was answered by HTTP status {answer.status_code}"
            raise DriverError(text, retry=answer.status_code >= 500 or answer.status_code in (408, 409, 412, 429))


def _content(answer: httpx.Response) -> Mapping[str, Any]:
    """The table that an answer is; an empty one where it is none."""
    try:
        found = answer.json() if answer.content else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _within(table: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    for key in keys:
        inner = table.get(key)
        table = inner if isinstance(inner, dict) else {}
    return table


def _paths(links: object) -> list[str]:
    found = [link.get("@odata.id") for link in links if isinstance(link, dict)] if isinstance(links, list) else []
    return [path for path in found if isinstance(path, str) and path.startswith("/")]


def _environment(metrics: Mapping[str, Any]) -> float:
    return _number(_within(metrics, "PowerWatts").get("Reading"))


def _consumed(power: Mapping[str, Any]) -> float:
    controls = power.get("PowerControl")
    # The first is the whole; what follows are parts of it.
    first = controls[0] if isinstance(controls, list) and controls else None
    return _number(first.get("PowerConsumedWatts")) if isinstance(first, dict) else 0.0


def _number(found: object) -> float:
    """Watts, or 0 where there are none: null is what a sensor says that can't be read."""
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
        return 0.0
    return max(0.0, float(found))
