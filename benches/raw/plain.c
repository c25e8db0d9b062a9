/* Raw packets by recvmmsg and sendmmsg, 64 a call, and nothing else: what the bench `raw` compares with.
 *
 *     plain ether|ipv6 INTERFACE DESTINATION
 *
 * DESTINATION is a link address as 12 hexadecimal digits, or an IPv6 address. It reads commands, one a line, and answers
 * each with a line:
 *
 *     send BYTES COUNT      sends so many packets               packets, ns on the clock, ns of CPU time
 *     recv COUNT            receives at least so many           the same
 *     recv_from COUNT       and is told who sent each, and what was dropped
 *     flood BYTES           sends until the next command        "flooding", and packets when it ends
 *     pace BYTES RATE       the same, 16 together and so many   the same
 *                           packets a second
 *
 * BYTES counts the payload behind the header of Ethernet or of IPv6. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { BATCH = 64, TOGETHER = 16, ROOM = 2048, QUEUE = 4 << 20, ETHER_TYPE = 0x88b5, NEXT_HEADER = 59 };

static int fd, header_len;
static unsigned char sent[14 + ROOM];
static unsigned char rooms[BATCH][ROOM];
static struct sockaddr_in6 destination;

static void die(const char *what) {
    perror(what);
    exit(1);
}

static int64_t now(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static void open_ether(int index, const char *to) {
    struct sockaddr_ll own = {.sll_family = AF_PACKET, .sll_protocol = htons(ETHER_TYPE), .sll_ifindex = index};
    socklen_t len = sizeof own;
    fd = socket(AF_PACKET, SOCK_RAW, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&own, sizeof own) || getsockname(fd, (struct sockaddr *)&own, &len))
        die("packet socket");
    header_len = 14;
    for (int at = 0; at < 6; at++)
        sscanf(to + 2 * at, "%2hhx", &sent[at]);
    memcpy(sent + 6, own.sll_addr, 6);
    sent[12] = ETHER_TYPE >> 8, sent[13] = ETHER_TYPE & 0xff;
}

static void open_ipv6(const char *interface, int index, const char *to) {
    fd = socket(AF_INET6, SOCK_RAW, NEXT_HEADER);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, interface, strlen(interface)))
        die("raw socket");
    destination.sin6_family = AF_INET6;
    destination.sin6_scope_id = index;
    if (inet_pton(AF_INET6, to, &destination.sin6_addr) != 1)
        die(to);
}

static struct mmsghdr headers[BATCH];
static struct iovec parts[BATCH];

static int64_t send_batch(size_t bytes, int64_t most) {
    for (int at = 0; at < BATCH; at++) {
        parts[at] = (struct iovec){sent, header_len + bytes};
        headers[at].msg_hdr = (struct msghdr){.msg_iov = &parts[at], .msg_iovlen = 1};
        if (destination.sin6_family) {
            headers[at].msg_hdr.msg_name = &destination;
            headers[at].msg_hdr.msg_namelen = sizeof destination;
        }
    }
    int done = sendmmsg(fd, headers, most < BATCH ? most : BATCH, 0);
    if (done < 0 && errno != ENOBUFS)
        die("sendmmsg");
    return done < 0 ? 0 : done;
}

static struct sockaddr_storage senders[BATCH];
static union {
    struct cmsghdr first;
    char room[128];
} facts[BATCH];

static int64_t recv_batch(int is_told) {
    for (int at = 0; at < BATCH; at++) {
        parts[at] = (struct iovec){rooms[at], ROOM};
        headers[at].msg_hdr = (struct msghdr){.msg_iov = &parts[at], .msg_iovlen = 1};
        if (is_told) {
            headers[at].msg_hdr.msg_name = &senders[at];
            headers[at].msg_hdr.msg_namelen = sizeof senders[at];
            headers[at].msg_hdr.msg_control = &facts[at];
            headers[at].msg_hdr.msg_controllen = sizeof facts[at];
        }
    }
    int done = recvmmsg(fd, headers, BATCH, MSG_WAITFORONE, NULL);
    if (done < 0)
        die("recvmmsg");
    return done;
}

/* At a rate it waits by looking at the clock, so that it is not late. */
static void flood(size_t bytes, int64_t rate) {
    struct pollfd next = {.fd = 0, .events = POLLIN};
    int64_t done = 0, due = now(CLOCK_MONOTONIC), most = rate ? TOGETHER : BATCH;
    puts("flooding");
    for (int at = 0;; at++) {
        while (rate && now(CLOCK_MONOTONIC) < due)
            ;
        done += send_batch(bytes, most);
        due += rate ? most * 1000000000LL / rate : 0;
        if (at % 16 == 0 && poll(&next, 1, 0))
            break;
    }
    printf("%lld\n", (long long)done);
}

int main(int argc, char **argv) {
    char line[80];
    if (argc != 4)
        return 2;
    if (!strcmp(argv[1], "ether"))
        open_ether(if_nametoindex(argv[2]), argv[3]);
    else
        open_ipv6(argv[2], if_nametoindex(argv[2]), argv[3]);
    int room = QUEUE, on = 1;
    if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room) ||
        setsockopt(fd, SOL_SOCKET, SO_RXQ_OVFL, &on, sizeof on))
        die("setsockopt");
    setlinebuf(stdout);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        long long bytes = 0, count = 0, done = 0, rate = 0;
        if (sscanf(line, "flood %lld", &bytes) == 1 || sscanf(line, "pace %lld %lld", &bytes, &rate) == 2) {
            flood(bytes, rate);
            continue;
        }
        int is_told = sscanf(line, "recv_from %lld", &count) == 1;
        int receives = is_told || sscanf(line, "recv %lld", &count) == 1;
        if (!receives && sscanf(line, "send %lld %lld", &bytes, &count) != 2)
            continue; /* the end of a flood */
        int64_t wall = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID);
        while (done < count)
            done += receives ? recv_batch(is_told) : send_batch(bytes, count - done);
        cpu = now(CLOCK_PROCESS_CPUTIME_ID) - cpu, wall = now(CLOCK_MONOTONIC) - wall;
        printf("%lld %lld %lld\n", done, (long long)wall, (long long)cpu);
    }
    return 0;
}
