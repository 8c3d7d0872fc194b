# Runs on each machine when it joins, with the properties of its unit and lease in the environment.
# The coordinator serves a queue of tasks; a worker takes tasks from it. The job is launched when as many workers as the
# leases' property cluster.size says have come; those that come later take their part of what is left.
set -eu
here=/tmp/cluster port=8080 me=$LEASEKIT_UNIT_NAME
mkdir -p "$here"
cd "$here"

coordinator() {
    mkdir -p held todo taken done workers www/cgi-bin
    echo "${LEASEKIT_CLUSTER_SIZE:-1}" >size
    # The job: how many primes there are among the first numbers, a task for each 1000. A second join makes none again.
    last=$(((${LEASEKIT_CLUSTER_TASKS:-60} - 1) * 1000))
    [ -e made ] || for task in $(seq 0 1000 "$last"); do : >"held/$task"; done
    : >made
    cat >www/cgi-bin/job <<'end'
#!/bin/sh
# What workers ask for: here=NAME, take=NAME, put=TASK:RESULT, gone=NAME, or nothing, for how far it is.
cd /tmp/cluster
printf 'Content-Type: text/plain\r\n\r\n'
key=${QUERY_STRING%%=*} value=${QUERY_STRING#*=}
case $value in *[!A-Za-z0-9.:-]* | .*) exit ;; esac
give() {
    mv "$1" "taken/${1##*/}" 2>/dev/null || return
    echo "$value" >"taken/${1##*/}"
    echo "${1##*/}"
    exit
}
case $key in
here)
    : >"workers/$value"
    if [ "$(ls workers | wc -l)" -ge "$(cat size)" ]; then mv held/* todo/ 2>/dev/null; fi
    ;;
take)
    for task in todo/*; do [ -e "$task" ] && give "$task"; done
    # What somebody took long ago went with its machine.
    for task in $(find taken -type f -mmin +1); do
        mv "$task" "todo/${task##*/}" && give "todo/${task##*/}"
    done
    ;;
put) echo "${value#*:}" >"done/${value%%:*}" && rm -f "taken/${value%%:*}" ;;
gone)
    rm -f "workers/$value"
    for task in $(grep -lx "$value" taken/* 2>/dev/null); do mv "$task" "todo/${task##*/}"; done
    ;;
*)
    echo "workers $(ls workers | wc -l)"
    echo "waiting $(($(ls held | wc -l) + $(ls todo | wc -l)))"
    echo "done $(ls done | wc -l)"
    echo "primes $(cat done/* 2>/dev/null | awk '{ sum += $1 } END { print sum + 0 }')"
    ;;
esac
end
    chmod 755 www/cgi-bin/job
    busybox wget -qO- "http://127.0.0.1:$port/cgi-bin/job" >/dev/null 2>&1 ||
        setsid busybox httpd -p "$port" -h "$here/www" </dev/null >/dev/null 2>&1
    echo "{\"url\": \"http://$LEASEKIT_HOST:$port/cgi-bin/job\"}"
}

worker() {
    url="http://${LEASEKIT_PREDECESSOR_HOSTS%% *}:$port/cgi-bin/job"
    cat >work <<'end'
#!/bin/sh
# Takes tasks until there is a file called stop.
cd /tmp/cluster
while [ ! -e stop ]; do
    task=$(busybox timeout 10 busybox wget -qO- "$1?take=$2" 2>/dev/null)
    if [ -z "$task" ]; then
        sleep 1
        continue
    fi
    found=$(awk -v from="$task" 'BEGIN {
        for (n = from; n < from + 1000; n++) {
            prime = n > 1
            for (d = 2; prime && d * d <= n; d++) if (n % d == 0) prime = 0
            count += prime
        }
        print count + 0
    }')
    busybox timeout 10 busybox wget -qO- "$1?put=$task:$found" 2>/dev/null
done
end
    chmod 755 work
    rm -f stop
    busybox timeout 10 busybox wget -qO- "$url?here=$me"
    if ! { [ -e pid ] && kill -0 "$(cat pid)" 2>/dev/null; }; then
        setsid ./work "$url" "$me" </dev/null >/dev/null 2>&1 &
        echo $! >pid
    fi
}

case $LEASEKIT_LEASE_NAME in
coordinator) coordinator ;;
*) worker ;;
esac
