# What several cases use.

# listening PORT: waits until a program of the kernel's side listens there.
listening() {
  until rdma resource show cm_id | grep "state LISTEN.*:$1 " >/dev/null; do sleep 0.05; done
}
