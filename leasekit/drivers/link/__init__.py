"""Units as bandwidth: traffic between the two ends of a link, shaped by the kernel with ``tc``.

A resource type is a link, a unit a granule of its bandwidth. All units of a lease are one class of a hierarchical token
bucket (HTB) at each end, which is one class in each direction, and one subnet that says which traffic is the lease's.
"""
