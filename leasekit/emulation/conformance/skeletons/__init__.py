"""Mappers to begin with, one for each role: what ``leasekit mapper new`` copies, under another name.

They are real mappers, which pass ``leasekit mapper check``, and they rely on nothing but what a mapper may rely on.
"""
