#!/bin/sh
# Runs where the guest that leases the block does, for each machine that joins: makes a hypervisor of it, and says to the
# site of virtual machines that it is there.
set -eu
known=$(mktemp)
trap 'rm -f "$known"' EXIT
printf 'unit %s\n' "$LEASEKIT_HOST_KEY" >"$known"
ssh -F /dev/null -T -o BatchMode=yes -o StrictHostKeyChecking=yes -o UserKnownHostsFile="$known" -o HostKeyAlias=unit \
    -o IdentitiesOnly=yes -o IdentityAgent=none -o ConnectTimeout=20 -i "$KEY" -p "$LEASEKIT_PORT" \
    -l "${LEASEKIT_USER:-root}" -- "$LEASEKIT_HOST" sh -s <scripts/prepare.sh >&2
leasekit site hypervisor add "$LEASEKIT_UNIT" --actor cloud --address "$LEASEKIT_HOST" --port "$LEASEKIT_PORT" \
    --user "${LEASEKIT_USER:-root}" --host-key "$LEASEKIT_HOST_KEY" --until "$((LEASEKIT_LEASE_END - LEAVE_MS))" >&2
