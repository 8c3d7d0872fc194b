# Runs on each machine when it leaves: a worker ends the task that it is at, and says that it is gone.
set -eu
cd /tmp/cluster || exit 0
if [ "$LEASEKIT_LEASE_NAME" = coordinator ]; then
    exit 0
fi
: >stop
if [ -e pid ]; then
    # shellcheck disable=SC2034
    for try in $(seq 1 20); do
        kill -0 "$(cat pid)" 2>/dev/null || break
        sleep 1
    done
fi
busybox timeout 10 busybox wget -qO- "http://${LEASEKIT_PREDECESSOR_HOSTS%% *}:8080/cgi-bin/job?gone=$LEASEKIT_UNIT_NAME" ||
    echo "the coordinator does not answer" >&2
