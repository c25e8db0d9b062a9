# conformance GROUP: the cases of tests/conformance in this group on rxe_a and rxe_b. Both have a port of the same switch, and
# a cable that can be pulled: port_a and port_b are its ends at the switch.
source "$GUEST_DIR/neighbours.sh"

if ! ip link show switch >/dev/null 2>&1; then
  modprobe bridge
  ip link add switch type bridge
  for name in a:1 b:2; do
    ip link add "veth_${name%:*}" address "02:00:00:00:77:0${name#*:}" type veth peer name "port_${name%:*}"
    ip link set "port_${name%:*}" master switch up
  done
  ip link set switch up
  # One processor takes what comes out of a cable. Otherwise it is the one that has sent it, and packets that a busy process
  # sends from two processors one after the other change places, which cables do not do.
  for end in veth_a veth_b port_a port_b; do echo 1 >/sys/class/net/$end/queues/rx-0/rps_cpus; done
  neighbours veth_a 10.79.0.1 02:00:00:00:77:01 veth_b 10.79.0.2 02:00:00:00:77:02
fi
away() {
  for name in a b; do
    [[ ! -d /sys/class/infiniband/rxe_$name ]] || rdma link delete rxe_$name
  done
}

away # what a case before has left that was ended at its limit
for name in a b; do rdma link add rxe_$name type rxe netdev veth_$name; done
trap away EXIT
"/job/conformance" --ignored --test-threads=1 --color=never "rxe::$1::" | tee result
grep -q '^test result: ok\. [1-9]' result
