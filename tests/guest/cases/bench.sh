# bench: one sample of everything that `cargo bench --bench guest` compares, each a line
# "sample WHO WHAT VARIANT NANOSECONDS", for a round trip of 64 bytes or a message of 64 KiB.

# perftest NAME OPTION...: runs it between rxe1 and rxe0, and prints what the end that asks prints.
perftest() {
  local program=$1 peer
  shift
  "$program" -d rxe1 -x 1 "$@" >served 2>&1 &
  peer=$!
  until ss -ltn | grep -q ':18515 '; do sleep 0.05; done
  "$program" -d rxe0 -x 1 "$@" 127.0.0.1 || { cat served; return 1; }
  wait $peer
}

# latency VARIANT OPTION...: perftest's typical half round trip is in microseconds.
latency() {
  local variant=$1
  shift
  perftest ib_send_lat -s 64 -n 1000 -m 1024 -F "$@" | tee log |
    awk -v variant="$variant" '$1 == 64 { print "sample rxe ping-pong", variant, 2000 * $5 }' | grep sample
}

# bandwidth WHAT MTU: perftest's average is in gigabits a second.
bandwidth() {
  perftest "ib_$1_bw" -s 65536 -n 200 -m "$2" -t 16 -F --report_gbits | tee log |
    awk -v what="$1" -v mtu="$2" '$1 == 65536 { print "sample rxe", what, mtu, 65536 * 8 / $4 }' | grep sample
}

# ours WHO MTU: the bench itself, between the namespaces c and d.
ours() {
  local peer
  ip netns exec d "$BENCH" answer "$1" 10.78.0.2 "$2" &
  peer=$!
  until ip netns exec d ss -ltn | grep -q ':18600 '; do sleep 0.05; done
  ip netns exec c "$BENCH" ask "$1" 10.78.0.1 "$2" 10.78.0.2
  wait $peer
}

trap 'cat log' ERR
latency blocking -e
ours rc 1024
latency spinning
ours udp 1024
for mtu in 1024 4096; do
  for what in write read send; do bandwidth $what $mtu; done
  [[ $mtu == 1024 ]] || for who in rc udp; do ours $who $mtu; done
done
