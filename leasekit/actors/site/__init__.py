"""The site authority's layers, each a class built on the one before: leases and their units, claims, failures,
maintenance, power, what is saved, and :class:`.authority.Authority`, which speaks the protocol.

They know units and who was promised them; not how a driver makes one, nor why a broker gave a ticket.
"""
