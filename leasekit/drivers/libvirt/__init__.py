"""Units as virtual machines under libvirt: QEMU with or without KVM, on one host or many.

Everything that belongs to a unit is kept where it runs: a domain that carries the unit's record in its metadata, and
volumes in a storage pool. The driver keeps nothing of its own, so a daemon that is started again finds what is there.
"""
