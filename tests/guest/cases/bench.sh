# bench: one sample of everything that `cargo bench --bench guest` compares, each a line
# "sample WHO WHAT VARIANT NANOSECONDS", for a round trip of 64 bytes, a message of 64 KiB or a connection.

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

# sdk WAITING: messages of the SDK between rxe1 and rxe0.
sdk() {
  local peer
  "$BENCH" answer sdk rxe1 "$1" &
  peer=$!
  until ss -ltn | grep -q ':18600 '; do sleep 0.05; done
  "$BENCH" ask sdk rxe0 "$1"
  wait $peer
}

# cmtime_on_rxe0: the kernel's connection manager, which is there only meanwhile. All connections are at the same step.
cmtime_on_rxe0() {
  local peer
  modprobe rdma_ucm
  cmtime -b 10.77.0.1 -c "$CONNECTIONS" >served 2>&1 &
  peer=$!
  until rdma resource show cm_id | grep -q LISTEN; do sleep 0.05; done
  cmtime -s 10.77.0.1 -c "$CONNECTIONS" >log 2>&1
  awk -F: -v count="$CONNECTIONS" '
    { sub(/ +$/, "", $1); split($2, ms, " "); took[$1] = 1e6 * ms[1] / count }
    END {
      path = took["create id"] + took["bind addr"] + took["resolve addr"] + took["resolve route"]
      print "sample cmtime path", path
      print "sample cmtime queue pair", took["create qp"]
      print "sample cmtime connect", took["connect"]
      print "sample cmtime all three", path + took["create qp"] + took["connect"]
      print "sample cmtime disconnect", took["disconnect"]
      print "sample cmtime destroy", took["destroy"]
    }' log
  cat log
  kill $peer || true # it may wait for a last disconnect
  wait $peer || true
  modprobe -r rdma_ucm rdma_cm iw_cm ib_cm
  ! lsmod | grep '^ib_cm '
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
if [[ $ON_RXE ]]; then
  sdk blocking
  sdk spinning
  cmtime_on_rxe0
  "$BENCH" steps rxe0 "$CONNECTIONS"
  "$BENCH" whole rxe0 "$CONNECTIONS"
fi
