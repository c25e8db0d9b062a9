/*
 * Queries to the SA over libibumad, as short as they can be made: sent, repeated by the library's lower half, received.
 *
 *     umad LID MAD      the SA's LID, and the query as 512 hexadecimal digits
 *
 * Each line "COUNT IN_FLIGHT" of the input asks for so many queries, so many under way at once; the answer is a line with the
 * microseconds of CPU that they took.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <infiniband/umad.h>

enum { MAD = 256, SA_CLASS = 3, SA_VERSION = 2, GSI_QP = 1, TIMEOUT_MS = 1000, RETRIES = 5, PATIENCE_MS = 10000 };

static unsigned char mad[MAD];
static void *umad;
static int port, agent, lid;

static void die(const char *what)
{
	fprintf(stderr, "umad: %s\n", what);
	exit(1);
}

static void send_one(unsigned tid)
{
	unsigned char *bytes = umad_get_mad(umad);

	memset(umad, 0, umad_size());
	memcpy(bytes, mad, MAD);
	bytes[12] = tid >> 24;
	bytes[13] = tid >> 16;
	bytes[14] = tid >> 8;
	bytes[15] = tid;
	umad_set_addr(umad, lid, GSI_QP, 0, 0x80010000);
	umad_set_pkey(umad, 0);
	if (umad_send(port, agent, umad, MAD, TIMEOUT_MS, RETRIES) < 0)
		die("a query cannot be sent");
}

static void receive_one(void)
{
	int length = MAD;
	unsigned char *bytes = umad_get_mad(umad);

	if (umad_recv(port, umad, &length, PATIENCE_MS) < 0)
		die("no answer");
	if (umad_status(umad) != 0 || bytes[4] != 0 || bytes[5] != 0)
		die("a query failed");
}

static long long cpu_us(void)
{
	struct timespec time;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
	return time.tv_sec * 1000000LL + time.tv_nsec / 1000;
}

int main(int argc, char **argv)
{
	unsigned long count, in_flight;
	unsigned tid = 0;
	char line[64];

	if (argc != 3 || strlen(argv[2]) != 2 * MAD)
		die("a LID and a MAD are needed");
	lid = atoi(argv[1]);
	for (int i = 0; i < MAD; i++) {
		char digits[3] = { argv[2][2 * i], argv[2][2 * i + 1], 0 };
		mad[i] = strtoul(digits, NULL, 16);
	}
	umad = umad_alloc(1, umad_size() + MAD);
	if (umad == NULL || umad_init() < 0 || (port = umad_open_port(NULL, 0)) < 0)
		die("no port");
	agent = umad_register(port, SA_CLASS, SA_VERSION, 0, NULL);
	if (agent < 0)
		die("the class is taken");
	while (fgets(line, sizeof(line), stdin) != NULL) {
		unsigned long sent = 0;
		long long before = cpu_us();

		if (sscanf(line, "%lu %lu", &count, &in_flight) != 2)
			die("two numbers are needed");
		for (unsigned long received = 0; received < count; received++) {
			while (sent < count && sent - received < in_flight) {
				send_one(++tid);
				sent++;
			}
			receive_one();
		}
		printf("%lld\n", cpu_us() - before);
		fflush(stdout);
	}
	return 0;
}
