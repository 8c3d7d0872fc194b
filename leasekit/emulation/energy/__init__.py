"""What power management saves: the experiment on job logs, its metrics, and the account of an emulated site.

It knows the rule by which a site's mapper switches units; actors and mappers know nothing of it.
"""
