# For `cargo bench --bench guest`. Two wires of the same kind, MTU 9000: rxe0 and rxe1 at the ends of one, namespaces c and d
# at the ends of the other.
source "$GUEST_DIR/neighbours.sh"
modprobe -a veth crc32_generic rdma_rxe ib_uverbs ib_umad
ip link set lo up

# Both ends of the first wire are in the initial namespace, where rxe has its socket.
mac0=02:00:00:00:00:01 mac1=02:00:00:00:00:02
ip link add veth0 mtu 9000 address $mac0 type veth peer name veth1 mtu 9000 address $mac1
neighbours veth0 10.77.0.1 $mac0 veth1 10.77.0.2 $mac1
rdma link add rxe0 type rxe netdev veth0
rdma link add rxe1 type rxe netdev veth1
rdma link show

ip link add veth2 mtu 9000 type veth peer name veth3 mtu 9000
for end in "c veth2 10.78.0.1" "d veth3 10.78.0.2"; do
  read -r namespace device address <<<"$end"
  ip netns add "$namespace"
  ip link set "$device" netns "$namespace"
  ip -n "$namespace" link set lo up
  ip -n "$namespace" address add "$address/24" dev "$device"
  ip -n "$namespace" link set "$device" up
done
