# The other end of the raw socket tests, in Python: a socket of the interpreter's own, told by lines what to do.
# usage: peer.py ether INTERFACE ETHERTYPE | ipv6 INTERFACE NEXT-HEADER | udp INTERFACE PORT
import socket
import struct
import sys

PATIENCE = 10.0
kind, interface, number = sys.argv[1], sys.argv[2], int(sys.argv[3], 0)
index = socket.if_nametoindex(interface)
if kind == "ether":
    peer = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    peer.bind((interface, number))
elif kind == "ipv6":
    peer = socket.socket(socket.AF_INET6, socket.SOCK_RAW, number)
    peer.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
elif kind == "udp":
    peer = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    peer.bind(("::", number))
peer.settimeout(PATIENCE)


def frame(head, number, length):
    return head + struct.pack(">I", number).ljust(length, b"\0")


def act(word, *rest):
    if word == "send":  # a frame, or a payload and where it goes
        data = bytes.fromhex(rest[0])
        if kind == "ether":
            peer.send(data)
        else:
            peer.sendto(data, (rest[1], 0 if kind == "ipv6" else int(rest[2]), 0, index))
    elif word == "flood":  # head, how many, bytes of payload
        head, many, length = bytes.fromhex(rest[0]), int(rest[1]), int(rest[2])
        for at in range(many):
            peer.send(frame(head, at, length))
    elif word == "recv":
        data, sender = peer.recvfrom(65536)
        return data.hex() + " " + str(sender[0])
    elif word == "echo":  # frames go back where they came from
        for _ in range(int(rest[0])):
            data = peer.recv(65536)
            peer.send(data[6:12] + data[0:6] + data[12:])
    elif word == "join":
        group = socket.inet_pton(socket.AF_INET6, rest[0]) + struct.pack("@I", index)
        peer.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, group)
    elif word == "segments":  # one send that the kernel may cut into datagrams of so many bytes
        peer.setsockopt(17, 103, int(rest[0]))  # UDP_SEGMENT
    else:
        raise ValueError(word)
    return "done"


print("ready", flush=True)
for line in sys.stdin:
    print(act(*line.split()), flush=True)
