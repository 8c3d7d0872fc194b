"""The co-allocation planner: sites, paths and a start together, after Takefusa, Nakada, Kudoh and Tanaka.

=============  =====================================================================================================
``model``      problems as they are written: resources, request, options, frames
``instance``   the same in whole numbers
``routing``    cheapest paths, and several at once
``search``     the exact search
``milp``       the paper's integer program, through HiGHS
``solve``      the one, with the other behind it
``frames``     candidate starts, what is free at each, plans in order
``reasons``    why not, and what would fit
``checker``    the independent check of every plan
``problem``    a problem file, decided
=============  =====================================================================================================

No clock and no randomness: without a deadline of the caller's, the same problem always has the same answer.
"""
