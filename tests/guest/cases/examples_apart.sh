# examples_apart KERNEL OURS GROUP: examples with an end on rxe0 and the other one on the software HCA, both ways round.
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

/job/rping serve "$1" --device rxe0 >rping &
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

# Datagrams, found by SIDR.
/job/udaddy serve --device rxe0 >udaddy &
server=$!
says udaddy listening
beside /job/udaddy call "$1" >called
grep '^datagram 10 of 100 bytes' called
ends

beside /job/udaddy serve >udaddy &
server=$!
says udaddy listening
/job/udaddy call "$2" --device rxe0 >called
grep '^datagram 10 of 100 bytes' called
wait $server

# To a multicast group; what the port has joined for it is left again.
/job/udaddy hear "$3" --device rxe0 >heard &
server=$!
says heard listening
ip maddress show dev veth0 | grep "inet.* $3"
beside /job/udaddy tell "$3"
ends
grep '^datagram 10 of 100 bytes' heard
if ip maddress show dev veth0 | grep "inet.* $3"; then exit 1; fi

beside /job/udaddy hear "$3" >heard &
server=$!
says heard listening
/job/udaddy tell "$3" --device rxe0
wait $server
grep '^datagram 10 of 100 bytes' heard
