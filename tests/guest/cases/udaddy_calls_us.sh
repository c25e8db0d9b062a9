# udaddy_calls_us OURS: udaddy as a client resolves our socket by SIDR, sends 10 datagrams and wants 10 back.
source "$GUEST_CASES/lib.sh"
beside /job/udaddy serve >served &
server=$!
says served listening
udaddy -s "$1"
wait $server
