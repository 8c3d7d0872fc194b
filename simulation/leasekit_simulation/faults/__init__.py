"""Fault simulation: production actors in a world in which everything goes wrong that may, drawn from one seed.

A run has two phases. In the first there are faults, and checkers that keep their own books look at every step; in the
second there are none, and everything must come to its end within a bound. :mod:`.scenario` draws a run from a seed,
:mod:`.run` carries it out, :mod:`.campaign` runs many seeds and :mod:`.shrink` makes a failure small.
"""
