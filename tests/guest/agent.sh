#!/bin/bash
# Runs in the guest as root. Sets the machine up (/job/setup.sh), then takes orders from the host, one a line, on
# the second serial port:
#     run NAME SECONDS SETTLING SCRIPT [ARG...]     answered by "done NAME STATUS" when the case is over
# Everything a case prints goes to /job/logs/NAME, which the host reads. The first answer is "ready" or "broken".
# A case that ended well but has left something in the kernel SETTLING seconds later ends with status 98.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C
source /job/env
ln -s /proc/self/fd /dev/fd
exec 3<>/dev/ttyS1
stty -F /dev/ttyS1 raw -echo

# A guest nobody waits for any more ends by itself.
(sleep "$GUEST_SECONDS"; echo o >/proc/sysrq-trigger) &

if bash -eu -o pipefail /job/setup.sh >/job/logs/setup 2>&1 </dev/null; then echo ready >&3; else echo broken >&3; fi
dmesg --clear

# left: the objects of the kernel's RDMA devices, how often the files of its modules are open, the IP groups that rxe0's
# interface is in.
left() {
  rdma resource show | sed 's/^[0-9]*: //' | sort
  grep -s . /sys/module/{ib_umad,ib_uverbs,rdma_ucm}/refcnt
  ip maddress show dev veth0 | awk '/inet/ { print $1, $2 }' | sort # rdma_rxe itself leaves link layer ones there
}
first=$(left)

set -m # each case in a process group of its own
while read -r -u 3 verb name seconds settling script args; do
  [[ $verb == run ]] || break
  cd "$(mktemp -d)" || break
  before=$(left)
  # shellcheck disable=SC2086 # args are words
  timeout --kill-after=2 "$seconds" bash -eu -o pipefail "$GUEST_CASES/$script" $args >"/job/logs/$name" 2>&1 </dev/null &
  group=$! began=${EPOCHREALTIME/./}
  wait $group
  status=$? ended=${EPOCHREALTIME/./}
  echo "$name $(((ended - began) / 1000)) ms" >>/job/times
  kill -KILL -- -$group 2>/dev/null # what the case left running
  # Back to what was there before, or at boot, should the case before have left something.
  until now=$(left) && [[ $now == "$before" || $now == "$first" ]]; do
    if ((${EPOCHREALTIME/./} - ended > settling * 1000000)); then
      printf 'left in the kernel:\n%s\nbefore there was:\n%s\n' "$now" "$before" >>"/job/logs/$name"
      ((status != 0)) || status=98
      break
    fi
    sleep 0.1
  done
  { [[ $status == 124 || $status == 137 ]] && echo "the case took longer than its $seconds s"
    [[ $status != 0 ]] && echo "kernel log:" && dmesg; } >>"/job/logs/$name"
  dmesg --clear
  tc qdisc del dev veth0 root 2>/dev/null
  ip netns exec b tc qdisc del dev veth1 root 2>/dev/null
  echo "done $name $status" >&3
done
