"""Units as processes of the site's own machine, which outlive the daemon that started them.

Everything of a unit is in its folder, so a daemon that is started again finds what runs.
"""
