# For `cargo bench --bench guest`. Two wires of the same kind, MTU 9000: rxe0 and rxe1 at the ends of one, namespaces c and d
# at the ends of the other.
modprobe -a veth crc32_generic rdma_rxe ib_uverbs
ip link set lo up

# Both ends of the first wire are in the initial namespace, where rxe has its socket. What one end sends to the other must
# take the wire, though both addresses are local (spec/roce-captures, set-up A).
mac0=02:00:00:00:00:01 mac1=02:00:00:00:00:02
ip link add veth0 mtu 9000 address $mac0 type veth peer name veth1 mtu 9000 address $mac1
ip address add 10.77.0.1/32 dev veth0
ip address add 10.77.0.2/32 dev veth1
echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
for end in veth0 veth1; do
  ip link set $end up
  echo 1 >/proc/sys/net/ipv4/conf/$end/accept_local
  echo 0 >/proc/sys/net/ipv4/conf/$end/rp_filter
  echo 1 >/proc/sys/net/ipv4/conf/$end/arp_ignore
done
ip neighbour replace 10.77.0.2 lladdr $mac1 dev veth0 nud permanent
ip neighbour replace 10.77.0.1 lladdr $mac0 dev veth1 nud permanent
ip rule add pref 100 lookup local
ip rule del pref 0
ip route add 10.77.0.2 dev veth0 src 10.77.0.1 table 101
ip route add 10.77.0.1 dev veth1 src 10.77.0.2 table 102
ip rule add pref 10 iif lo from 10.77.0.1 to 10.77.0.2 lookup 101
ip rule add pref 11 iif lo from 10.77.0.2 to 10.77.0.1 lookup 102
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
