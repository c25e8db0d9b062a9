# rping_calls_us OURS SIZE: 100 pings of SIZE bytes, which rping compares when they come back, and so does our server.
source "$GUEST_CASES/lib.sh"
beside /job/rping serve "$1" >served &
server=$!
says served listening
rping -c -a "$1" -C 100 -S "$2" -V
wait $server
grep '^server: 100 pings' served
