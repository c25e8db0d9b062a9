# rxe0 with ib_umad and ib_uverbs but without ib_cm, so that a program may register for class 7 itself.
source "$GUEST_DIR/wire.sh"
modprobe -a rdma_rxe ib_umad ib_uverbs
rdma link add rxe0 type rxe netdev veth0
rdma link show rxe0/1
if lsmod | grep '^ib_cm '; then echo "ib_cm is loaded"; exit 1; fi
