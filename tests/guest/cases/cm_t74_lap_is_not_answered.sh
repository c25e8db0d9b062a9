# cm_t74_lap_is_not_answered KERNEL SPARE: the kernel's CM says nothing to a LAP, to its other address; the connection stays.
source "$GUEST_CASES/lib.sh"
ucmatose -b "$1" -C 10 -S 100 &
server=$!
listening 7471
ours call "$1" 7471 --spare "$2" --messages 10 --size 100 --until-closed >called
wait $server
grep '^unanswered' called
grep -x 'received 10' called
