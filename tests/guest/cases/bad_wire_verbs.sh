# bad_wire_verbs: rxe0 and the software HCA connect 20 times each way over a wire that loses, delays and reorders.
source "$GUEST_CASES/lib.sh"
bad_wire
/job/verbs --ignored --test-threads=1 --color=never many_connections_at_once | tee result
grep -q '^test result: ok\. 2 ' result
packets_were_lost
