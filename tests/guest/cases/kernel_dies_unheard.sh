# kernel_dies_unheard KERNEL: the wire is cut, then ucmatose is killed, so that its DREQ is lost. Our next message finds
# nobody: it fails once its retries are over, and our connection with it.
source "$GUEST_CASES/lib.sh"
ucmatose -b "$1" -C 10 -S 100 &
server=$!
listening 7471
mkfifo go
ours call "$1" 7471 --messages 1 --size 100 --first --wait-for go >called &
client=$!
says called established
cut_wire
kill -KILL $server
echo go >go
if wait $client; then echo "no error"; exit 1; fi
grep '^lost the operation failed: transport retries exceeded' called
