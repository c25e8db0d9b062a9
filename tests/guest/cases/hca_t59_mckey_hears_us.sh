# hca_t59_mckey_hears_us KERNEL GROUP: mckey joins a group and receives 10 datagrams of ours.
source "$GUEST_CASES/lib.sh"
ip route replace 239.0.0.0/8 dev veth0
stdbuf -oL mckey -b "$1" -m "$2" >heard &
mckey=$!
says heard "receiving data transfers"
beside /job/udaddy tell "$2"
wait $mckey
