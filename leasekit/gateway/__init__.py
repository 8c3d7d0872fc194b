"""The HTTP door of a deployment: for people and programs, over the actors' control sockets.

A gateway decides nothing that an actor could, and keeps nothing of leases: killed at any moment nothing is lost, and
started again it goes on. What it keeps are tokens, as hashes. It must not know what an actor does with a command, nor
the shell that runs it: commands are called by name, with the arguments that :mod:`leasekit.client.shapes` describes.
"""
