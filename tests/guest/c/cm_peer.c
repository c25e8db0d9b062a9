// What rdma-core's own tools do not do: refuse requests with private data, and tell what a refusal said.
//
//   cm_peer reject ADDRESS PORT TEXT COUNT   listens, rejects COUNT requests with TEXT as private data, ends
//   cm_peer call ADDRESS PORT                connects once and prints what came of it:
//                                            "rejected REASON TEXT", "established" or "EVENT STATUS"
#include <netdb.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RESOLVE_MS = 5000 };

static void check(int failed, const char *what)
{
	if (failed) {
		perror(what);
		exit(2);
	}
}

static struct addrinfo *address(const char *host, const char *port)
{
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM }, *found;
	check(getaddrinfo(host, port, &hints, &found), host);
	return found;
}

static struct rdma_cm_event *next(struct rdma_event_channel *channel)
{
	struct rdma_cm_event *event;
	check(rdma_get_cm_event(channel, &event), "rdma_get_cm_event");
	return event;
}

static int reject(struct rdma_event_channel *channel, struct addrinfo *local, const char *text, int count)
{
	struct rdma_cm_id *listener;
	check(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP), "rdma_create_id");
	check(rdma_bind_addr(listener, local->ai_addr), "rdma_bind_addr");
	check(rdma_listen(listener, count), "rdma_listen");
	while (count > 0) {
		struct rdma_cm_event *event = next(channel);
		struct rdma_cm_id *id = event->id;
		int request = event->event == RDMA_CM_EVENT_CONNECT_REQUEST;
		if (request)
			check(rdma_reject(id, text, strlen(text)), "rdma_reject");
		rdma_ack_cm_event(event);
		if (request) {
			rdma_destroy_id(id);
			count--;
		}
	}
	rdma_destroy_id(listener);
	return 0;
}

static void expect(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event = next(channel);
	if (event->event != type) {
		printf("%s %d\n", rdma_event_str(event->event), event->status);
		exit(1);
	}
	rdma_ack_cm_event(event);
}

static int call(struct rdma_event_channel *channel, struct addrinfo *remote)
{
	struct rdma_cm_id *id;
	check(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), "rdma_create_id");
	check(rdma_resolve_addr(id, NULL, remote->ai_addr, RESOLVE_MS), "rdma_resolve_addr");
	expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	check(rdma_resolve_route(id, RESOLVE_MS), "rdma_resolve_route");
	expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	struct ibv_qp_init_attr attributes = {
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	check(rdma_create_qp(id, NULL, &attributes), "rdma_create_qp");
	struct rdma_conn_param parameters = { .responder_resources = 1, .initiator_depth = 1, .retry_count = 7 };
	check(rdma_connect(id, &parameters), "rdma_connect");

	struct rdma_cm_event *event = next(channel);
	switch (event->event) {
	case RDMA_CM_EVENT_REJECTED:
		// The whole area comes, zero-padded.
		printf("rejected %d %.*s\n", event->status, (int)event->param.conn.private_data_len,
		       event->param.conn.private_data ? (const char *)event->param.conn.private_data : "");
		break;
	case RDMA_CM_EVENT_ESTABLISHED:
		printf("established\n");
		break;
	default:
		printf("%s %d\n", rdma_event_str(event->event), event->status);
	}
	rdma_ack_cm_event(event);
	rdma_destroy_qp(id);
	rdma_destroy_id(id);
	return 0;
}

int main(int count, char **words)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	check(!channel, "rdma_create_event_channel");
	if (count == 6 && !strcmp(words[1], "reject"))
		return reject(channel, address(words[2], words[3]), words[4], atoi(words[5]));
	if (count == 4 && !strcmp(words[1], "call"))
		return call(channel, address(words[2], words[3]));
	fprintf(stderr, "usage: cm_peer reject ADDRESS PORT TEXT COUNT | cm_peer call ADDRESS PORT\n");
	return 2;
}
