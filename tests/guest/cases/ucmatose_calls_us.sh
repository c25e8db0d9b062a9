# ucmatose_calls_us OURS: ucmatose as a client receives 10 messages of 100 bytes, sends 10 out of the same buffer, so
# what it received, and waits for the disconnect.
source "$GUEST_CASES/lib.sh"
ours serve "$1" 7471 --messages 10 --size 100 --first --echo >served &
server=$!
says served listening
ucmatose -s "$1" -C 10 -S 100
wait $server
