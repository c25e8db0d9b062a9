# The device of the kernel is active, has the GIDs that the other cases count on, and CM is there for user space.
rdma link show rxe0/1
rdma link show rxe0/1 | grep 'state ACTIVE physical_state LINK_UP netdev veth0' >/dev/null
grep . /sys/class/infiniband/rxe0/ports/1/gids/[0-2]
grep -q 0000:0000:0000:0000:0000:ffff:0a4d:0001 /sys/class/infiniband/rxe0/ports/1/gids/*
grep -q fd77:0000:0000:0000:0000:0000:0000:0001 /sys/class/infiniband/rxe0/ports/1/gids/*
test -c /dev/infiniband/rdma_cm
if pgrep -x sleep -a | grep 1000; then echo "left over from another case"; exit 1; fi
