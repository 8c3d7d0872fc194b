"""The broker's layers, each a class built on the one before: usage and state, sources, claims, and
:class:`.broker.Broker`, which speaks the protocol.

They know what delegations hold and who asked; not what a unit is made of, nor how a mapper decides.
"""
