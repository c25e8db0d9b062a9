# What several cases use.

# ours COMMAND...: the program of ours, guest/peer.rs, in namespace b. What it traces goes to a file.
ours() {
  beside "$PEER" "$@"
}

# beside COMMAND...: a program with the default device, in namespace b. What it traces goes to a file.
beside() {
  IBCM_DEVICE=soft:10.77.0.2,fd77::2 RUST_LOG=${RUST_LOG:-ibcm=debug,ibsoft=debug} NO_COLOR=1 ip netns exec b "$@" 2>>trace
}

# At the end a case shows the files that it wrote: the same line once, with its count.
shown() {
  local status=$? file
  for file in *; do
    [[ -f $file && ($file != trace || $status != 0) ]] || continue
    echo "== $file"
    if [[ $file == trace ]]; then tail -n 300 trace; else sort "$file" | uniq -c; fi
  done
}
trap shown EXIT

# listening PORT: waits until a program of the kernel's side listens there.
listening() {
  until rdma resource show cm_id | grep "state LISTEN.*:$1 " >/dev/null; do sleep 0.05; done
}

# says FILE TEXT: waits until a line of the file begins with the text.
says() {
  until grep -s "^$2" "$1"; do sleep 0.05; done
}

# bad_wire [LOSS]: both directions lose 5 % of the packets, or LOSS, and delay and reorder the others. Ours goes through tbf
# first, which cuts what was sent as one batch (UDP GSO) into packets, for netem to lose one by one.
bad_wire() {
  local bad="netem loss ${1:-5%} delay 2ms 1ms reorder 25%"
  tc qdisc add dev veth0 root $bad
  ip netns exec b tc qdisc add dev veth1 root handle 1: tbf rate 1gbit burst 1600 latency 1s
  ip netns exec b tc qdisc add dev veth1 parent 1:1 $bad
}

# packets_were_lost: checks that a bad wire was one.
packets_were_lost() {
  { tc -s qdisc show dev veth0; ip netns exec b tc -s qdisc show dev veth1; } >wire
  grep -q 'dropped [1-9]' wire
}

# link_up: what `ip link set veth0 down` has taken away is there again.
link_up() {
  ip link set veth0 up
  ip address replace fd77::1/64 dev veth0 nodad
  for peer in 10.77.0.2 fd77::2; do
    ip neighbour replace $peer lladdr 02:00:00:00:00:02 dev veth0 nud permanent
  done
}

# cut_wire: nothing arrives any more, in either direction.
cut_wire() {
  tc qdisc replace dev veth0 root netem loss 100%
  ip netns exec b tc qdisc replace dev veth1 root netem loss 100%
}
