"""The site authority: its parts, and :class:`.authority.Authority`, in which they are put together.

They know units and who was promised them; not how a driver makes one, nor why a broker gave a ticket.
"""
