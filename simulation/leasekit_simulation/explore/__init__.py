"""Exhaustive exploration of the joint states of one or two leases across the three production actors.

:mod:`.flows` says what the guest wants, :mod:`.rig` holds the actors, :mod:`.joint` is a joint state, :mod:`.moves`
says what can happen next, :mod:`.canonical` when two joint states are the same; :mod:`.search` walks through all of
them breadth first, :mod:`.legal` declares which are legal, :mod:`.report` says what came of it.
"""

from leasekit_simulation.explore.flows import FLOWS, Flow
from leasekit_simulation.explore.report import Report, explore, never_reached, page

__all__ = ["FLOWS", "Flow", "Report", "explore", "never_reached", "page"]
