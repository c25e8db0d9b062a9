# verbs KERNEL TRANSPORT WHAT WHO: two queue pairs without a connection manager, one of rxe0 driven by pyverbs, one of the
# software HCA. WHO, "us" or "kernel", asks for what is done; the other one serves, and its memory is compared at the end.
source "$GUEST_CASES/lib.sh"
theirs=serves ours=asks
[[ $4 == kernel ]] && theirs=asks ours=serves
/usr/bin/python3 "$GUEST_DIR/python/verbs_peer.py" "$1" "$2" "$3" $theirs >theirs 2>&1 &
peer=$!
says theirs listening
ours verbs "$1" "$2" "$3" $ours >ours
wait $peer
grep -x right ours
grep -x right theirs
