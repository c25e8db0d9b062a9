# examples: each example with both ends in one process, on rxe0. After each nothing of it is left in the kernel.
source "$GUEST_CASES/lib.sh"
rdma resource show >before

# runs NAME TEXT ARGUMENT...: runs an example on rxe0 and expects the text in what it prints.
runs() {
  local name=$1 text=$2
  shift 2
  local began=$SECONDS
  timeout 120 "/job/$name" --device rxe0 "$@" >"$name" 2>&1 || { tail -n 50 "$name" | cut -c -1000; return 1; }
  tr '\r' '\n' <"$name" | grep -q "$text" || { tail -n 50 "$name"; echo "no '$text' in what $name prints"; return 1; }
  until rdma resource show | diff - before; do sleep 0.05; done >left
  rm "$name"
  echo "$name: $((SECONDS - began)) s"
}
runs devinfo 'listening: fine'
runs discovery 'it answers'
runs echo 'client: message 5, 64 bytes, came back after'
runs http 'client: the same came back: true'
runs kv 'client: read 65536 bytes back: \[7, 7, 7, 7, 7, 7, 7, 7\]'
runs observe 'disconnected, the peer confirmed, after 10 messages'
runs own_qp 'client: 64 bytes came back'
runs ranks '100 of 100 up' 100
runs rpc 'server: 2 calls served'
if /job/failover --device rxe0 2>said; then exit 1; fi
grep 'rxe0 has 1 port, without path migration; this takes a device with both' said
runs storm '1000 of 1000 connections in' --count 1000 --concurrency 16 --deadline 240
