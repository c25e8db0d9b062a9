# Both devices of user space are there, and nothing in the kernel holds the CM class.
test -c /dev/infiniband/umad0
test -c /dev/infiniband/uverbs0
if lsmod | grep '^ib_cm '; then exit 1; fi
