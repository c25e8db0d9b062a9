# ucmatose_loop ADDRESS: 5 connections, 10 messages of 100 bytes each way.
source "$GUEST_CASES/lib.sh"
ucmatose -c 5 -b "$1" &
server=$!
listening 7471
rdma resource show cm_id
ucmatose -c 5 -s "$1"
wait $server
