"""The web pages: what people open in a browser to see what is free, to reserve it, and to understand what they got.

A page is a frame that is made here (who is logged in, where one can go) and a module that runs in the browser, which
fills it by the public API and hears by its events what changes. The room knows sessions, the paths of the pages, and
the functions of the API by which one logs in and out. It must not know actors, their control sockets, leases or the
store: what a page shows the API answers, and what the API lacks is added there, where programs have it too. No page
has a script or a style in its text, text of others is put into pages as text alone, and nothing needs a build.
"""
