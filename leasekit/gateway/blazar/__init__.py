"""OpenStack's Blazar API: its leases, hosts and allocations, over the same commands and queries as all of the gateway.

It translates, and must not decide what an actor could: a Blazar lease is a slice of a guest, whose name is the lease's
id, and each of its reservations is a lease of that slice; a Blazar host is a unit of a site, by its number there. What
Blazar keeps and leasekit has no word for (the lease's name, what was asked for) is a note of the slice. It must not
know how hosts are chosen, nor what a broker or a site does with a request, and keeps nothing of its own.
"""
