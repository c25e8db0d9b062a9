# The kernel's whole stack at one end (rxe0, ib_cm, rdma_cm, rdma_ucm), an empty network namespace at the other.
source "$GUEST_DIR/wire.sh"
modprobe -a rdma_rxe rdma_ucm ib_umad
rdma link add rxe0 type rxe netdev veth0
rdma link show rxe0/1
