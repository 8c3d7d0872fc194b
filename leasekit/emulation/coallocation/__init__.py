"""The experiment of the co-allocation paper, planned alone or with real actors; and problems drawn from a seed.

It knows the planner and the emulation of deploy files; neither knows of it.
"""
