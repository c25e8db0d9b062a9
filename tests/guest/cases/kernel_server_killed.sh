# kernel_server_killed KERNEL: ucmatose has sent its messages, gets none back and dies by SIGKILL. The kernel sends one
# DREQ, which ends our connection as a disconnect does; afterwards nobody serves there.
source "$GUEST_CASES/lib.sh"
ucmatose -b "$1" -C 10 -S 100 &
server=$!
listening 7471
ours call "$1" 7471 --messages 10 --size 100 --silent --until-closed >called &
client=$!
says called received
kill -KILL $server
wait $client
ours call "$1" 7471 >called || true
grep -x 'rejected 8 ' called
