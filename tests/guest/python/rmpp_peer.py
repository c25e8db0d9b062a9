"""An agent of class 3 on the kernel's rxe0 whose transfers of several MADs the kernel itself does (umad, RMPP version 1); the
other end is `guest-peer rmpp` (peer/rmpp.rs), with the engines of ibsa on the software HCA.

rmpp_peer.py answers: answers each GetTable with as many bytes as it asks for, each GetMulti with the bytes that it brought, at
most ECHO: of the kernel's segments each that is lost costs 2 s.
rmpp_peer.py asks ADDRESS SEGMENTS...: asks the peer at ADDRESS for tables of so many segments. Stays until it is ended.
"""
import errno
import fcntl
import ipaddress
import os
import select
import struct
import sys

ENABLE_PKEY = 0x1B03
REGISTER_AGENT2 = 0xC028_1B04
UMAD, SA = 64, 56
GET_TABLE, GET_MULTI = 0x12, 0x14
ACTIVE = 1
GSI_QKEY = 0x8001_0000


def pattern(length):
    """The bytes that both ends know, without asking."""
    return (bytes(range(251)) * (length // 251 + 1))[:length]


def length_of(segments):
    """Not all of the last segment is used."""
    return 200 * segments - 8


ECHO = length_of(66)


def check(what, found, expected):
    if found != expected:
        if isinstance(found, bytes):
            found, expected = f"{len(found)} bytes {found[:16]!r}", f"{len(expected)} bytes"
        sys.exit(f"{what}: {found}, not {expected}")


class Agent:
    def __init__(self, methods):
        self.file = os.open("/dev/infiniband/umad0", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(self.file, ENABLE_PKEY)
        mask = sum(1 << method for method in methods)
        wanted = struct.pack("=II BBHI QQ I B3x", 0, 1, 3, 2, 0, 0, mask, 0, 0, 1)
        self.id = struct.unpack_from("=I", fcntl.ioctl(self.file, REGISTER_AGENT2, wanted))[0]

    def send(self, to, mad, patience, retries):
        head = struct.pack("=5I", self.id, 0, patience, retries, 0)
        os.write(self.file, head + to + mad)

    def receive(self):
        """Status, address and the whole message. Nothing is lost when the first buffer is too short for it."""
        select.select([self.file], [], [])
        try:
            read = os.read(self.file, UMAD + 256)
        except OSError as error:
            check("error of a short read", error.errno, errno.ENOSPC)
            read = os.read(self.file, UMAD + (1 << 20))
            check("a long message", len(read) > UMAD + 256, True)
        status, length = struct.unpack_from("=I", read, 4)[0], struct.unpack_from("=I", read, 16)[0]
        if status == 0:
            check("length", len(read), length)
        return status, read[20:UMAD], read[UMAD:]


def back(address):
    """Where an answer to a message from there goes."""
    return address[:4] + struct.pack(">I", GSI_QKEY) + address[8:]


def to(ip):
    """The address of a port of the subnet."""
    gids = "/sys/class/infiniband/rxe0/ports/1/gids"
    family = [g for g in sorted(os.listdir(gids), key=int) if open(f"{gids}/{g}").read().startswith("fd77")]
    gid = ipaddress.ip_address(ip).packed
    grh = struct.pack("BBBB", 1, int(family[0]), 64, 0) + gid
    return struct.pack(">II H BB", 1, GSI_QKEY, 0, 0, 0) + grh + bytes(4 + 2 + 6)


def data_of(mad):
    """What stands behind the headers. The kernel hands up the whole room of a message of one MAD."""
    if len(mad) > 256 or not mad[26] & ACTIVE:
        return mad[SA:]
    return mad[SA:SA + struct.unpack_from(">I", mad, 32)[0] - 20]


def answers():
    agent, known = Agent([GET_TABLE, GET_MULTI]), set()
    print("listening", flush=True)
    while True:
        status, address, mad = agent.receive()
        if status:
            print("unacknowledged", os.strerror(status), flush=True)
            continue
        method, transaction = mad[3], mad[8:16]
        if transaction in known:
            continue  # the same request again: its answer is on its way
        known.add(transaction)
        if method == GET_MULTI:
            data = data_of(mad)
            check("a request", data, pattern(len(data)))
            data = data[:ECHO]
        else:
            data = pattern(struct.unpack_from(">I", mad, SA)[0])
        print("request", hex(method), len(data), flush=True)
        head = bytearray(mad[:SA])
        head[3] = method | 0x80
        head[24:36] = bytes(12)
        head[24], head[26] = 1, ACTIVE
        struct.pack_into(">H", head, 44, 1)
        # With a time the kernel would wait for an answer to the answer. So it repeats after 2 s what is not acknowledged.
        agent.send(back(address), bytes(head) + data, 0, 20)


def asks(ip, segments):
    agent, address = Agent([]), to(ip)
    for number, count in enumerate(segments, 1):
        length = length_of(count)
        head = bytearray(SA)
        head[:4] = bytes([1, 3, 2, GET_TABLE])
        struct.pack_into(">Q H", head, 8, number, 0x11)
        request = bytes(head) + struct.pack(">I", length) + bytes(196)
        agent.send(address, request, 1000, 100)
        status, _, mad = agent.receive()
        check("status", status, 0)
        check("method", mad[3], 0x92)
        check("transaction", struct.unpack_from(">I", mad, 12)[0], number)
        check(f"table of {count} segments", data_of(mad), pattern(length))
        print("table of segments:", count, flush=True)
    print("right", flush=True)
    # What is under way belongs to the agent. Until this is ended.
    select.select([], [], [])


if sys.argv[1] == "answers":
    answers()
else:
    asks(sys.argv[2], [int(count) for count in sys.argv[3:]])
