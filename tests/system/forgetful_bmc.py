"""A BMC that forgets boot flags unless it is told not to, for ipmitool: pyghmi's, with parameters 3 and 5 of the system
boot options (IPMI 2.0, section 28.12). Its minute is over at once. One that ``refuses`` has no parameter 3, as some
have not, and forgets nothing.

Runs in the environment of the BMC tools: PORT USER PASSWORD forgets|refuses.
"""

from __future__ import annotations

import sys

from pyghmi.ipmi import bmc

CLEARING, FLAGS = 3, 5
NOT_ON_TIMEOUT, VALID = 0x08, 0x80
UNSUPPORTED = 0x80


class ForgetfulBmc(bmc.Bmc):
    """One that says of its boot flags what they are."""

    def __init__(self, user: str, password: str, port: int, refuses: bool) -> None:
        super().__init__({user: password}, port)
        self._refuses = refuses
        self._clearing = 0
        self._flags = [0] * 5

    def set_system_boot_options(self, request, session):
        which, *data = request["data"]
        if which == CLEARING and self._refuses:
            session.send_ipmi_response(code=UNSUPPORTED)
            return
        if which == CLEARING:
            self._clearing = data[0]
        if which == FLAGS:
            self._flags = list(data)
        session.send_ipmi_response()

    def get_system_boot_options(self, request, session):
        if request["data"][0] != FLAGS:
            session.send_ipmi_response(code=UNSUPPORTED)
            return
        kept = self._refuses or self._clearing & NOT_ON_TIMEOUT
        first, *others = self._flags
        session.send_ipmi_response(data=[1, FLAGS, first if kept else first & ~VALID, *others])


if __name__ == "__main__":
    port, user, password, mode = sys.argv[1:]
    ForgetfulBmc(user, password, int(port), mode == "refuses").listen()
