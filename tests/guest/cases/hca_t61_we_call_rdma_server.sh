# hca_t61_we_call_rdma_server KERNEL: rdma_server receives one message of 16 bytes, answers with 16 zeros and disconnects.
source "$GUEST_CASES/lib.sh"
rdma_server -s "$1" &
server=$!
listening 7471
ours call "$1" 7471 --messages 1 --size 16 --first --until-closed
wait $server
