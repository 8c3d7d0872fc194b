"""From settings to power control."""

from __future__ import annotations

from leasekit.core.settings import SettingsError
from leasekit.drivers.power.base import Controller, PowerControl, PowerLimits
from leasekit.drivers.power.commands import ScriptController
from leasekit.drivers.power.ipmi import IpmiController
from leasekit.drivers.power.settings import ControllerSettings, Ipmi, Redfish


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
