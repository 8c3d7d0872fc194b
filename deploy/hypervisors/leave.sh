#!/bin/sh
# Runs for each machine that leaves the block: leases of virtual machines on it end, and it is let go.
set -eu
leasekit site hypervisor remove "$LEASEKIT_UNIT" --actor cloud --patience 10m >&2
