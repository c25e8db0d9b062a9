# examples_apart KERNEL OURS: examples with an end on rxe0 and the other one on the software HCA, both ways round.
source "$GUEST_CASES/lib.sh"
rdma resource show >before

# ends: waits until the program in the background has ended well, and nothing of it is left in the kernel.
ends() {
  wait "$server"
  until rdma resource show | diff - before; do sleep 0.05; done >left
}

/job/target --device rxe0 >target &
server=$!
says target listening
# It takes version 2, and serves the commands of who stays; dial leaves at once.
beside /job/dial "$1" >dial
grep -x 'disconnected, the peer confirmed' dial
kill -INT $server
ends
grep -x stopped target

beside /job/echo serve --once >echo &
server=$!
says echo "connect to"
/job/dial --device rxe0 "$2" >dial
grep -x 'disconnected, the peer confirmed' dial
wait $server

/job/rping serve 0.0.0.0 --device rxe0 >rping &
server=$!
says rping listening
beside /job/rping connect "$1" --count 20 >called
grep '^client: 20 pings of 64 bytes verified' called
ends

beside /job/port >port &
server=$!
says port listening
/job/rping connect "$2" --count 20 --device rxe0 >called
grep '^client: 20 pings of 64 bytes verified' called
wait $server

/job/port --device rxe0 >port &
server=$!
says port listening
beside /job/rping connect "$1" --count 20 >called
grep '^client: 20 pings of 64 bytes verified' called
ends
