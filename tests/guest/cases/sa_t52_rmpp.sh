# sa_t52_rmpp KERNEL US WHO WIRE SEGMENTS...: transfers of several MADs between the kernel's RMPP (umad on rxe0) and ours. WHO,
# "us" or "kernel", asks: we for tables, and with requests of as many segments; the kernel for tables. WIRE: good or bad.
source "$GUEST_CASES/lib.sh"
kernel=$1 us=$2 who=$3 wire=$4
shift 4
if [[ $wire == bad ]]; then bad_wire; fi
peer() { /usr/bin/python3 "$GUEST_DIR/python/rmpp_peer.py" "$@" 2>&1; }
if [[ $who == us ]]; then
  peer answers >theirs &
  says theirs listening
  ours rmpp "$us" "$kernel" asks "$@" >ours
  kill $!
  if [[ $wire == good ]] && grep unacknowledged theirs; then exit 1; fi
else
  ours rmpp "$us" "$kernel" answers "$@" >ours &
  ours=$!
  says ours listening
  peer asks "$us" "$@" >theirs &
  wait $ours
  says theirs right
  kill $!
  if [[ $wire == good ]] && grep unacknowledged ours; then exit 1; fi
fi
grep -x right ours
if [[ $wire == bad ]]; then packets_were_lost; fi
