# rping_loop ADDRESS: two processes of the kernel's stack on one device, 3 rounds of SEND, READ and WRITE.
source "$GUEST_CASES/lib.sh"
rping -s -a "$1" -C 3 -v &
server=$!
listening 7174
rping -c -a "$1" -C 3 -v
wait $server
