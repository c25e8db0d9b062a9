# hca_t59_mckey_tells_us KERNEL GROUP: mckey sends 10 datagrams to a group that our socket has joined.
source "$GUEST_CASES/lib.sh"
ip route replace 239.0.0.0/8 dev veth0
beside /job/udaddy hear "$2" >heard &
ours=$!
says heard listening
mckey -b "$1" -m "$2" -s
wait $ours
