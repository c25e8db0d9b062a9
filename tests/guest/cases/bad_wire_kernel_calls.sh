# bad_wire_kernel_calls OURS: the other way round, 20 connections. The kernel's own response timeout is 4.3 s (code 20).
source "$GUEST_CASES/lib.sh"
bad_wire
ours serve "$1" 7471 --connections 20 --messages 5 --size 100 --first --echo >served &
server=$!
says served listening
ucmatose -s "$1" -c 20 -C 5 -S 100
wait $server
packets_were_lost
