# cm_peer_loop ADDRESS: the C program of ours, kernel to kernel: both refusals, a consumer's and for want of a listener.
source "$GUEST_CASES/lib.sh"
/job/cm_peer reject "$1" 7300 no,thanks 1 &
server=$!
listening 7300
/job/cm_peer call "$1" 7300 | tee call
grep -qx 'rejected 28 no,thanks' call
wait $server
/job/cm_peer call "$1" 7300 | tee call
grep -qx 'rejected 8 ' call
