# consumer_refuses KERNEL OURS: a program's refusal arrives with reason 28 and its private data, in both directions.
source "$GUEST_CASES/lib.sh"
/job/cm_peer reject "$1" 7300 no,thanks 1 &
server=$!
listening 7300
ours call "$1" 7300 >called || true
grep -x 'rejected 28 no,thanks' called
wait $server
ours reject "$2" 7301 not,today >rejecting &
server=$!
says rejecting listening
/job/cm_peer call "$2" 7301 >called
grep -x 'rejected 28 not,today' called
wait $server
