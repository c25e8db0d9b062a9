# we_call_ucmatose KERNEL: ucmatose as a server sends 10 messages of 100 bytes, wants 10 back and disconnects.
source "$GUEST_CASES/lib.sh"
ucmatose -b "$1" -C 10 -S 100 &
server=$!
listening 7471
ours call "$1" 7471 --messages 10 --size 100 --until-closed
wait $server
