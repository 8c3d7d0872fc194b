"""The service manager's layers, each a class built on the one before: state, units, returns, groups, desk, plans,
suspension, and :class:`.service_manager.ServiceManager`, which speaks the protocol.

They know tickets and the units that sites have given; not what a broker or a site holds beside.
"""
