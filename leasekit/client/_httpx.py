"""httpx without its own command line: imported before all that imports httpx.

httpx imports that command line wherever what it needs is installed, and with it most of rich and pygments: a third of
what httpx takes, in every daemon and command.
"""

import sys
from typing import Any, Final, cast

_MODULES: Final = cast("dict[str, Any]", sys.modules)
_COMMAND_LINE: Final = "httpx._main"

if "httpx" not in _MODULES:
    _MODULES[_COMMAND_LINE] = None  # as where its needs are not installed
    import httpx  # noqa: F401

    del _MODULES[_COMMAND_LINE]
