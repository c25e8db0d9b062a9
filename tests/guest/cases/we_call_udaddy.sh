# we_call_udaddy KERNEL: udaddy as a server answers our SIDR_REQ, receives 10 datagrams and sends 10.
source "$GUEST_CASES/lib.sh"
udaddy -b "$1" &
server=$!
listening 7174
beside /job/udaddy call "$1" >called
wait $server
