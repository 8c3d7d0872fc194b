"""Power control of machines: one interface over IPMI, Redfish and a site's own commands.

:func:`~leasekit.drivers.power.make.make_power` gives a :class:`~leasekit.drivers.power.base.Power` for what a site's
settings say of a machine's controller; :class:`~leasekit.drivers.power.driver.PowerDriver` is for energy managers.
"""
