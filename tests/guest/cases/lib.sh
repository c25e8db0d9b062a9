# What several cases use.

# ours COMMAND...: the program of ours, guest/peer.rs, in namespace b.
ours() {
  ip netns exec b "$PEER" "$@"
}

# listening PORT: waits until a program of the kernel's side listens there.
listening() {
  until rdma resource show cm_id | grep "state LISTEN.*:$1 " >/dev/null; do sleep 0.05; done
}

# says FILE TEXT: waits until a line of the file begins with the text.
says() {
  until grep -s "^$2" "$1"; do sleep 0.05; done
}

# bad_wire: both directions lose 5 % of the packets and delay and reorder the others.
bad_wire() {
  tc qdisc add dev veth0 root netem loss 5% delay 2ms 1ms reorder 25%
  ip netns exec b tc qdisc add dev veth1 root netem loss 5% delay 2ms 1ms reorder 25%
}

# cut_wire: nothing arrives any more, in either direction.
cut_wire() {
  tc qdisc replace dev veth0 root netem loss 100%
  ip netns exec b tc qdisc replace dev veth1 root netem loss 100%
}
