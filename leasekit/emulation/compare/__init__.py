"""``leasekit mapper compare``: one workload through several brokers' mappers, and what came of it.

:mod:`.works` reads or makes workloads, :mod:`.drive` leads one through one mapper, :mod:`.measures` sums up,
:mod:`.engines` runs several at once, :mod:`.report` writes tables and draws.
"""
