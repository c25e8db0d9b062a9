# leaves: for the test that what a case leaves in the kernel is seen. A process that the agent does not know of has a queue pair.
mkfifo there
setsid timeout 30 /usr/bin/python3 -c '
import time
from pyverbs.device import Context
from pyverbs.pd import PD
context = Context(name="rxe0")
domain = PD(context)
open("there", "w").close()
time.sleep(4)
' >/dev/null 2>&1 &
read -r <there || true
rdma resource show
