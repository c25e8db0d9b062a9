# own_qp KERNEL OURS WHO: a queue pair of rdma-sys on rxe0 and one of the software HCA, connected by our CM at both ends.
# WHO, "rdma_sys" or "soft", connects; the other one serves.
source "$GUEST_CASES/lib.sh"
if [[ $3 == rdma_sys ]]; then
  beside /job/own_qp serve >served &
  server=$!
  says served listening
  /job/rdma_sys_qp rxe0 "$2" >called
else
  /job/rdma_sys_qp rxe0 >served &
  server=$!
  says served listening
  beside /job/own_qp connect "$1" >called
fi
wait $server
grep '^client: 64 bytes came back: \[8, 8, 8, 8, 8, 8, 8, 8\]' called
grep '^client: disconnected, the peer confirmed' called
grep '^server: disconnected by the peer' served
# Nothing of rdma-sys' queue pair is left.
rdma resource show qp link rxe0 | grep -v 'type \(GSI\|SMI\)' | grep lqpn && exit 1
true
