# A veth pair: veth0 (10.77.0.1, fd77::1) in the initial namespace, where rxe takes UDP 4791; veth1 (10.77.0.2,
# fd77::2) in namespace b, where a program in user space has the port for itself. MTU 1500: path MTU 1024.
modprobe -a veth crc32_generic sch_netem sch_tbf # without crc32_generic `rdma link add` fails
mac0=02:00:00:00:00:01 mac1=02:00:00:00:00:02
ip link set lo up
ip netns add b
ip link add veth0 address $mac0 type veth peer name veth1 address $mac1
ip link set veth1 netns b
ip address add 10.77.0.1/24 dev veth0
ip address add fd77::1/64 dev veth0 nodad
ip link set veth0 up
ip -n b link set lo up
ip -n b address add 10.77.0.2/24 dev veth1
ip -n b address add fd77::2/64 dev veth1 nodad
ip -n b link set veth1 up
# Known neighbours: where the wire loses packets, only packets of ours are to be lost.
for peer in 10.77.0.2 fd77::2; do ip neighbour replace $peer lladdr $mac1 dev veth0 nud permanent; done
for peer in 10.77.0.1 fd77::1; do ip -n b neighbour replace $peer lladdr $mac0 dev veth1 nud permanent; done
