# sa_t52_rmpp KERNEL US WHO LOSS SEGMENTS...: transfers of several MADs between the kernel's RMPP (umad on rxe0) and ours. WHO,
# "us" or "kernel", asks: we for tables, and with requests of as many segments; the kernel for tables. LOSS of the wire: 0%, or
# what both directions lose, with reordering.
#
# The kernel as sender repeats a window after 2 s, so that each lost segment or ACK of ours costs that.
#
# The kernel as receiver acknowledges the end of a table once. Then its request is answered, and from 6.1.183 on ib_mad drops
# DATA that answers no request before it looks for the transfer that it belongs to ("drop unmatched RMPP responses before
# reassembly", CVE-2026-68425; spec/sa.md T50). If that one ACK is lost the kernel has the table, and its sender is never told.
# On a good wire we see that copies of the last segment are not answered; on a bad one a table or two may so end.
source "$GUEST_CASES/lib.sh"
kernel=$1 us=$2 who=$3 loss=$4
shift 4
if [[ $loss != 0% ]]; then bad_wire "$loss"; fi
peer() { /usr/bin/python3 "$GUEST_DIR/python/rmpp_peer.py" "$@" 2>&1; }
# many FILE TEXT: how many lines are the text.
many() { grep -cx "$2" "$1" || true; }
if [[ $who == us ]]; then
  peer answers >theirs &
  says theirs listening
  ours rmpp "$us" "$kernel" asks "$@" >ours
  kill $!
  # We acknowledge the end as often as it comes.
  if grep unacknowledged theirs; then exit 1; fi
else
  ours rmpp "$us" "$kernel" answers "$@" >ours &
  ours=$!
  says ours listening
  peer asks "$us" "$@" >theirs &
  wait $ours
  says theirs right
  kill $!
  if [[ $loss == 0% ]]; then
    [[ $(many ours unacknowledged) == 0 && $(many ours "acknowledged again") == 0 ]]
  else
    (($(many ours unacknowledged) <= 2))
  fi
fi
grep -x right ours
if [[ $loss != 0% ]]; then packets_were_lost; fi
