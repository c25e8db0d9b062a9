# hca_t60_nobody_serves KERNEL OURS: a service ID without a listener is refused with reason 8, in both directions.
source "$GUEST_CASES/lib.sh"
ours call "$1" 7999 >called || true
grep -x 'rejected 8 ' called
ours idle >idle &
says idle open
/job/cm_peer call "$2" 7999 >called
grep -x 'rejected 8 ' called
