"""Where units are found: addresses from a block for each slice, names by dnsmasq, hosts, users and slices by LDAP.

Each is a piece of its own that any driver may use; what is told to the world is put around a driver by
:class:`~leasekit.drivers.directory.publishing.PublishingDriver`.
"""
