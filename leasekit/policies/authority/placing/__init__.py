"""Virtual clusters: tasks placed on hosts so that the least yield is the greatest (Stillwell, Schanzenbach, Vivien and
Casanova, "Resource Allocation using Virtual Clusters"; JPDC 2010).

A task's yield is the CPU that it gets by the CPU that it needs. Pure functions: whoever decides for a site builds a
:class:`.model.YieldProblem` of its hosts and tasks, and has it solved by :func:`.solve.solve`.

``model``      hosts, tasks, the problem, and what is wrong with one
``instance``   the same in numbers by position: what all algorithms work on
``packing``    MCB1 to MCB8: multi-capacity bin packing at a yield, and the search for the greatest one
``greedy``     GR, SG, GB, SGB
``programs``   the mixed integer program, exactly or relaxed; RRND and RRNZ, which round what is relaxed
``improve``    local search after any of them
``shares``     CPU shares for a mapping that stands: by average yield, or by max-min
``solve``      an algorithm by its name, with a bound on migration; admission
``reasons``    why nothing was placed
``moves``      in which order caps and hosts are changed
``file``       a problem as ``leasekit plan place`` reads it
"""
