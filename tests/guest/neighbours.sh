# neighbours END ADDRESS MAC END ADDRESS MAC: two devices of one namespace that are at the ends of a wire. What one sends to
# the other takes the wire, though both addresses are local (spec/roce-captures, set-up A).
neighbours() {
  local end0=$1 address0=$2 mac0=$3 end1=$4 address1=$5 mac1=$6
  ip address add "$address0/32" dev "$end0"
  ip address add "$address1/32" dev "$end1"
  echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
  for end in "$end0" "$end1"; do
    ip link set "$end" up
    echo 1 >"/proc/sys/net/ipv4/conf/$end/accept_local"
    echo 0 >"/proc/sys/net/ipv4/conf/$end/rp_filter"
    echo 1 >"/proc/sys/net/ipv4/conf/$end/arp_ignore"
  done
  ip neighbour replace "$address1" lladdr "$mac1" dev "$end0" nud permanent
  ip neighbour replace "$address0" lladdr "$mac0" dev "$end1" nud permanent
  # Local addresses are looked up behind the rules that follow.
  ip rule add pref 100 lookup local
  ip rule del pref 0
  ip route add "$address1" dev "$end0" src "$address0" table 101
  ip route add "$address0" dev "$end1" src "$address1" table 102
  ip rule add pref 10 iif lo from "$address0" to "$address1" lookup 101
  ip rule add pref 11 iif lo from "$address1" to "$address0" lookup 102
}
