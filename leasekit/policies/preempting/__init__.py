"""Preemptible leases on hosts: which host takes a request, and which leases leave it (García et al., "An efficient
cloud scheduler design supporting preemptible instances", FGCS 2019).

Pure functions and one index, without actors: :mod:`.hosts` has hosts and leases as vectors, :mod:`.costs` what a victim
costs, :mod:`.victims` the exact choice on one host, :mod:`.selection` the choice of the host, :mod:`.index` the same
for many hosts without a look at each, and :mod:`.problem` the problem file of ``leasekit plan preempt``.
"""
