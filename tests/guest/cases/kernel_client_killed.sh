# kernel_client_killed OURS: ucmatose waits for messages that do not come and dies by SIGKILL. The kernel's DREQ ends our
# accepted connection; the listener serves the next client.
source "$GUEST_CASES/lib.sh"
ours serve "$1" 7471 --connections 2 --until-closed >>served &
server=$!
says served listening
for _ in 1 2; do
  ucmatose -s "$1" -C 10 -S 100 &
  client=$!
  says served established
  kill -KILL $client
  : >served
done
wait $server
