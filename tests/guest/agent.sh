#!/bin/bash
# Runs in the guest as root. Sets the machine up (/job/setup.sh), then takes orders from the host, one a line, on
# the second serial port:
#     run NAME SECONDS SCRIPT [ARG...]     answered by "done NAME STATUS" when the case is over
# Everything a case prints goes to /job/logs/NAME, which the host reads. The first answer is "ready" or "broken".
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C
source /job/env
ln -s /proc/self/fd /dev/fd
exec 3<>/dev/ttyS1
stty -F /dev/ttyS1 raw -echo

# A guest nobody waits for any more ends by itself.
(sleep "$GUEST_SECONDS"; echo o >/proc/sysrq-trigger) &

if bash -eu -o pipefail /job/setup.sh >/job/logs/setup 2>&1 </dev/null; then echo ready >&3; else echo broken >&3; fi
dmesg --clear

set -m # each case in a process group of its own
while read -r -u 3 verb name seconds script args; do
  [[ $verb == run ]] || break
  cd "$(mktemp -d)" || break
  # shellcheck disable=SC2086 # args are words
  timeout --kill-after=2 "$seconds" bash -eu -o pipefail "$GUEST_CASES/$script" $args >"/job/logs/$name" 2>&1 </dev/null &
  group=$! began=${EPOCHREALTIME/./}
  wait $group
  status=$?
  echo "$name $(((${EPOCHREALTIME/./} - began) / 1000)) ms" >>/job/times
  kill -KILL -- -$group 2>/dev/null # what the case left running
  { [[ $status == 124 || $status == 137 ]] && echo "the case took longer than its $seconds s"
    [[ $status != 0 ]] && echo "kernel log:" && dmesg; } >>"/job/logs/$name"
  dmesg --clear
  tc qdisc del dev veth0 root 2>/dev/null
  ip netns exec b tc qdisc del dev veth1 root 2>/dev/null
  echo "done $name $status" >&3
done
