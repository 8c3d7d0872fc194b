"""Units as virtual machines of Xen, on one host or many: `xl` in each control domain, reached by ssh.

Everything that belongs to a unit is kept where it runs: a folder with its record, its configuration and its disk. The
driver keeps nothing of its own, so a daemon that is started again finds what is there.
"""
