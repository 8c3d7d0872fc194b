"""A BMC with a meter, for ipmitool: pyghmi's, which answers "Get Power Reading" of DCMI (1.5, section 6.6.1) as well.

Runs in the environment of the BMC tools: PORT USER PASSWORD WATTS.
"""

from __future__ import annotations

import struct
import sys

from pyghmi.ipmi import bmc

GROUP, GET_POWER_READING, DCMI = 0x2C, 0x02, 0xDC
MEASURING = 0x40


class MeteringBmc(bmc.Bmc):
    """One whose machine is on, and draws the same always."""

    def __init__(self, user: str, password: str, port: int, watts: int) -> None:
        super().__init__({user: password}, port)
        self._watts = watts

    def get_power_state(self) -> str:
        return "on"

    def handle_raw_request(self, request, session):
        if (request["netfn"], request["command"]) != (GROUP, GET_POWER_READING):
            super().handle_raw_request(request, session)
            return
        watts = (self._watts, 100, 500, 250)  # now, least, most, mean
        answer = struct.pack("<B4HIIB", DCMI, *watts, 1_700_000_000, 60_000, MEASURING)
        session.send_ipmi_response(data=list(answer))


if __name__ == "__main__":
    port, user, password, watts = sys.argv[1:]
    MeteringBmc(user, password, int(port), int(watts)).listen()
