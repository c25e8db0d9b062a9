# bad_wire_we_call KERNEL: 200 connections from us at once over a wire that loses, delays and reorders; when all are
# established, ucmatose sends one message of 100 bytes on each, wants one back and disconnects. Response timeout code 16:
# a lost REQ or REP costs 0.27 s.
source "$GUEST_CASES/lib.sh"
bad_wire
ucmatose -b "$1" -c 200 -C 1 -S 100 &
server=$!
listening 7471
ours call "$1" 7471 --connections 200 --messages 1 --size 100 --until-closed --response-timeout 16 >called
wait $server
packets_were_lost
