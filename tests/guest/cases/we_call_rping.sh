# we_call_rping KERNEL SIZE: 100 pings of SIZE bytes; what rping reads and writes back is compared.
source "$GUEST_CASES/lib.sh"
rping -s -a "$1" -C 100 -S "$2" -V &
server=$!
listening 7174
beside /job/rping connect "$1" --count 100 --size "$2" --deadline 40 >called
wait $server
grep "^client: 100 pings of $2 bytes verified" called
