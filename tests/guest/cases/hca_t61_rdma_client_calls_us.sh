# hca_t61_rdma_client_calls_us OURS: rdma_client sends one message of 16 bytes, wants 16 back and disconnects.
source "$GUEST_CASES/lib.sh"
ours serve "$1" 7471 --messages 1 --size 16 --until-closed >served &
server=$!
says served listening
rdma_client -s "$1"
wait $server
