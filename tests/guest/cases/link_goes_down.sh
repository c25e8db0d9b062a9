# link_goes_down KERNEL...: an idle connection with a keepalive of a second, which the kernel answers; then its link goes
# down, and nobody says anything. We give it up within two periods of the last sign of life, not after the retries of 17 s.
# When the link is up again the kernel can be reached at each of its addresses.
source "$GUEST_CASES/lib.sh"
trap 'shown; link_up' EXIT
ucmatose -b "$1" -C 10 -S 100 &
server=$!
listening 7471
ours call "$1" 7471 --messages 10 --size 100 --silent --until-closed --keepalive 1000 >called &
client=$!
says called "kept alive"
ip link set veth0 down
if wait $client; then echo "no error"; exit 1; fi
grep '^lost the peer was silent for [23]\.' called
link_up # before the kernel has a DREQ to send: rxe0's QP 1 does not get over a send that finds the link down
kill -KILL $server
for kernel in "$@"; do
  ours call "$kernel" 7471 >again || true
  grep -x 'rejected 8 ' again
done
