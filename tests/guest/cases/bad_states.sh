# bad_states: what is wrong with a machine is said with the remedy, by the list of devices and by opening one.
source "$GUEST_CASES/lib.sh"
/job/devinfo | tee devinfo
grep -x 'rxe0: can be opened, node GUID 0x.*' devinfo
grep -x '    GID [0-9]*: 10\.77\.0\.1 (RoCE v2)' devinfo

# fails TEXT COMMAND...: the command fails and says so.
fails() {
  local text=$1
  shift
  if "$@" >said 2>&1; then cat said; return 1; fi
  grep "$text" said
}
fails 'this machine has no RDMA device rxe9; it has rxe0' /job/devinfo --device rxe9
fails 'rxe0 has no port 2; it has \[1\]' /job/devinfo --device rxe0/2
/job/devinfo --device rxe0/1

mode=$(stat -c %a /dev/infiniband/uverbs0)
nobody="setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all --bounding-set=-all"
trap 'shown; chmod $mode /dev/infiniband/uverbs0; modprobe ib_umad' EXIT
chmod 666 /dev/infiniband/uverbs0
fails 'no permission to read and write /dev/infiniband/umad0: .*udev rule' $nobody /job/devinfo --device rxe0
chmod 600 /dev/infiniband/uverbs0
fails 'no permission to read and write /dev/infiniband/uverbs0: .*udev rule' $nobody /job/devinfo --device rxe0
# No device that can be used is no reason to take a software HCA.
fails 'none can be used: rxe0 (no permission' $nobody /job/echo serve
modprobe -r ib_umad
fails 'the kernel module ib_umad is not loaded: modprobe ib_umad' /job/devinfo --device rxe0
modprobe ib_umad
