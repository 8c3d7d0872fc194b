"""The site authority: parts, and layers over them, each a class built on the one before: leases, claims, failures,
maintenance, and :class:`.authority.Authority`, which speaks the protocol.

They know units and who was promised them; not how a driver makes one, nor why a broker gave a ticket.
"""
