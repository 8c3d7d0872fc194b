"""What proves leasekit and is not installed with it.

:mod:`.faults` runs production actors in worlds in which everything goes wrong that may, :mod:`.explore` goes through
all joint states of a lease, and :mod:`.command` is ``leasekit simulate``, which leads both.
"""
