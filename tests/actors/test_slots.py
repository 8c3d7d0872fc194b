"""Windows that a broker's calendars have, by real actors: filters, sites, what is in the way, what is past."""

from __future__ import annotations

from typing import Any

import pytest
from deployed_world import DeployedWorld

from leasekit.core.errors import CommandError
from leasekit.core.time import HOUR
