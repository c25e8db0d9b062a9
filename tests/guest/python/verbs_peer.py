"""One end of a queue pair of the kernel's rxe0, driven by pyverbs; the other end is `guest-peer verbs`, which says the same
with the software HCA (peer/verbs.rs). What both have to know they tell each other over TCP.

verbs_peer.py ADDRESS TRANSPORT WHAT ROLE: ADDRESS is ours, TRANSPORT rc or uc, WHAT send, write, write_imm, read, atomic or
wrong_rkey, ROLE asks or serves.
"""
import socket
import sys
import time

import pyverbs.enums as e
from pyverbs.addr import AHAttr, GID, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import RecvWR, SendWR, SGE

PORT = 18500
PATIENCE = 30
# Within a packet of 1024 bytes, a whole one, one more, many; each in a place of its own, not aligned.
LENGTHS = [1, 7, 8, 1023, 1024, 1025, 4096, 40001]
PLACE = 50_000
MEMORY = PLACE * (len(LENGTHS) + 1)
DONE = b"done"


def place(n):
    return PLACE * n + 3


TILES = bytes(range(251)) * (MEMORY // 251 + 2)


def pattern(seed, length):
    """The bytes that both ends know, without asking."""
    return TILES[seed * 17:seed * 17 + length]


def word(number):
    return (number & (1 << 64) - 1).to_bytes(8, sys.byteorder)


def check(what, found, expected):
    if found != expected:
        if isinstance(found, bytes) and len(found) == len(expected):
            at = next(at for at in range(len(found)) if found[at] != expected[at])
            found, expected = f"{found[at:at + 16]!r} at {at}", expected[at:at + 16]
        sys.exit(f"{what}: {found}, not {expected}")


class Peer:
    def __init__(self, address, transport):
        self.context = Context(name="rxe0")
        self.pd = PD(self.context)
        self.cq = CQ(self.context, 200)
        access = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE
        if transport == "rc":
            access |= e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_ATOMIC
        # Two places: what the peer sees, and what we send from and receive into.
        self.memory = MR(self.pd, MEMORY, access)
        self.own = MR(self.pd, MEMORY, e.IBV_ACCESS_LOCAL_WRITE)
        self.memory.write(pattern(1, MEMORY), MEMORY)
        kind = {"rc": e.IBV_QPT_RC, "uc": e.IBV_QPT_UC}[transport]
        cap = QPCap(max_send_wr=32, max_recv_wr=32)
        self.attr = QPAttr(port_num=1)
        self.attr.qp_access_flags = access
        self.qp = QP(self.pd, QPInitAttr(qp_type=kind, scq=self.cq, rcq=self.cq, cap=cap), self.attr)

        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        server = socket.socket(family)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((address, PORT))
        server.listen()
        server.settimeout(PATIENCE)
        print("listening", flush=True)
        connection, (peer, *_) = server.accept()
        connection.settimeout(PATIENCE)
        self.tcp = connection.makefile("rw")
        self.connect(address, peer)

    def say(self, *words):
        print(*words, file=self.tcp, flush=True)

    def hear(self):
        line = self.tcp.readline()
        if not line:
            sys.exit("the peer has gone")
        return line.split()

    def connect(self, address, peer):
        psn = 0xFFFFFD
        self.say(self.qp.qp_num, psn, self.memory.buf, self.memory.rkey)
        qpn, peer_psn, self.addr, self.rkey = map(int, self.hear())
        gid, dgid = as_gid(address), as_gid(peer)
        index = next(at for at in range(64) if self.context.query_gid(1, at).gid == gid)
        route = GlobalRoute(dgid=GID(dgid), sgid_index=index, hop_limit=64)
        attr = self.attr
        attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=route)
        attr.path_mtu = e.IBV_MTU_1024
        attr.dest_qp_num, attr.rq_psn, attr.sq_psn = qpn, peer_psn, psn
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 2
        attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 12, 16, 7, 7
        self.qp.to_rts(attr)

    def ready(self):
        """Both ends are."""
        self.say("ready")
        check("the peer", self.hear(), ["ready"])

    def receive(self, count):
        for n in range(count):
            sge = SGE(self.own.buf + PLACE * n, PLACE, self.own.lkey)
            self.qp.post_recv(RecvWR(wr_id=n, num_sge=1, sg=[sge]))

    def completion(self):
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            count, completions = self.cq.poll(1)
            if count:
                return completions[0]
        sys.exit("no completion")

    def received(self, n, opcode, length, imm=None):
        done = self.completion()
        check("status", done.status, e.IBV_WC_SUCCESS)
        check("receive", (done.wr_id, done.opcode, done.byte_len), (n, opcode, length))
        if imm is not None:
            check("immediate", socket.ntohl(done.imm_data), imm)

    def carry_out(self, opcode, length, at=0, imm=None, rkey=None, atomic=None, status=e.IBV_WC_SUCCESS):
        """`length` bytes of our own memory, from its beginning, with the peer's at `at`."""
        sge = SGE(self.own.buf, length, self.own.lkey)
        imm = 0 if imm is None else socket.htonl(imm)
        wr = SendWR(opcode=opcode, num_sge=1, sg=[sge], imm_data=imm, send_flags=e.IBV_SEND_SIGNALED)
        rkey = self.rkey if rkey is None else rkey
        if atomic:
            wr.set_wr_atomic(rkey, self.addr + at, *atomic)
        elif opcode not in (e.IBV_WR_SEND, e.IBV_WR_SEND_WITH_IMM):
            wr.set_wr_rdma(rkey, self.addr + at)
        self.qp.post_send(wr)
        check(f"status of {length} bytes", self.completion().status, status)

    def tell(self):
        self.own.write(DONE, len(DONE))
        self.carry_out(e.IBV_WR_SEND, len(DONE))


def as_gid(address):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    raw = socket.inet_pton(family, address)
    raw = raw if len(raw) == 16 else bytes(10) + b"\xff\xff" + raw
    return ":".join(raw[at:at + 2].hex() for at in range(0, 16, 2))


def asks(peer, what):
    peer.ready()
    for n, length in enumerate(LENGTHS):
        data = pattern(n + 2, length)
        peer.own.write(data, length)
        if what == "send":
            with_imm = n % 2 == 1
            opcode = e.IBV_WR_SEND_WITH_IMM if with_imm else e.IBV_WR_SEND
            peer.carry_out(opcode, length, imm=1000 + n if with_imm else None)
        elif what == "write":
            peer.carry_out(e.IBV_WR_RDMA_WRITE, length, place(n))
        elif what == "write_imm":
            peer.carry_out(e.IBV_WR_RDMA_WRITE_WITH_IMM, length, place(n), imm=1000 + n)
        elif what == "read":
            peer.carry_out(e.IBV_WR_RDMA_READ, length, place(n))
            check("read", peer.own.read(length, 0), pattern(1, MEMORY)[place(n):place(n) + length])
    if what == "atomic":
        add, swap = e.IBV_WR_ATOMIC_FETCH_AND_ADD, e.IBV_WR_ATOMIC_CMP_AND_SWP
        for opcode, operands, before in [
            (add, (5,), 0x1000),
            (swap, (0x1005, 0x1122334455667788), 0x1005),
            (swap, (1, 2), 0x1122334455667788),
            (add, ((1 << 64) - 1,), 0x1122334455667788),
        ]:
            peer.carry_out(opcode, 8, at=8, atomic=operands)
            check("before", peer.own.read(8, 0), word(before))
    if what == "wrong_rkey":
        refused = dict(rkey=peer.rkey ^ 0x01010101, status=e.IBV_WC_REM_ACCESS_ERR)
        peer.carry_out(e.IBV_WR_RDMA_WRITE, 8, **refused)
        peer.say("refused")
    else:
        peer.tell()
    check("the peer", peer.hear(), ["right"])


def serves(peer, what):
    if what == "atomic":
        peer.memory.write(word(0x1000), 8, 8)
    peer.receive(len(LENGTHS) + 1)
    peer.ready()
    if what == "wrong_rkey":
        check("the peer", peer.hear(), ["refused"])
        check("status", peer.completion().status, e.IBV_WC_WR_FLUSH_ERR)
        check("memory", peer.memory.read(MEMORY, 0), pattern(1, MEMORY))
        peer.say("right")
        return
    taken = 0
    if what == "send":
        for n, length in enumerate(LENGTHS):
            imm = 1000 + n if n % 2 == 1 else None
            peer.received(n, e.IBV_WC_RECV, length, imm)
            check("message", peer.own.read(length, PLACE * n), pattern(n + 2, length))
        taken = len(LENGTHS)
    if what == "write_imm":
        for n, length in enumerate(LENGTHS):
            peer.received(n, e.IBV_WC_RECV_RDMA_WITH_IMM, length, 1000 + n)
        taken = len(LENGTHS)
    peer.received(taken, e.IBV_WC_RECV, len(DONE))
    expected = bytearray(pattern(1, MEMORY))
    if what in ("write", "write_imm"):
        for n, length in enumerate(LENGTHS):
            expected[place(n):place(n) + length] = pattern(n + 2, length)
    if what == "atomic":
        expected[8:16] = word(0x1122334455667787)
    check("memory", peer.memory.read(MEMORY, 0), bytes(expected))
    peer.say("right")


def main():
    address, transport, what, role = sys.argv[1:]
    peer = Peer(address, transport)
    (asks if role == "asks" else serves)(peer, what)
    print("right")


main()
