/*
 * health HOST PORT: exit 0 when the gRPC server there answers SERVING to the standard health check, else 1, within two
 * seconds. health HOST PORT http [PATH]: exit 0 when the HTTP server there answers GET PATH (default: /) with the status
 * 200. A static program of a millisecond: containers are asked every few seconds, and a Python each time would cost more
 * than the idle node that it asks after.
 *
 * It speaks the few frames of HTTP/2 (RFC 9113) that one call takes, like headrace_tools.local.health:
 *
 *     client: preface, SETTINGS, HEADERS(stream 1, POST /grpc.health.v1.Health/Check), DATA(00 00000000, END_STREAM)
 *     server: SETTINGS, ..., HEADERS, DATA(stream 1: 00 00000002 08 01), ...       08 01: HealthCheckResponse{SERVING}
 */
#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { TIMEOUT_MS = 2000, FRAME_MAX = 1 << 14, DATA = 0, HEADERS = 1, SETTINGS = 4, GOAWAY = 7 };

static long long now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

static size_t put_frame(unsigned char *to, unsigned char kind, unsigned char flags, unsigned char stream,
                        const void *payload, size_t size) {
    const unsigned char head[9] = {0, (unsigned char)(size >> 8), (unsigned char)size, kind, flags, 0, 0, 0, stream};
    memcpy(to, head, 9);
    if (size) memcpy(to + 9, payload, size);
    return 9 + size;
}

/* HPACK's simplest form: a literal, not indexed, not Huffman-coded (RFC 7541, 6.2.2); each below 127 bytes. */
static size_t put_header(unsigned char *to, const char *name, const char *value) {
    size_t n = strlen(name), v = strlen(value);
    to[0] = 0;
    to[1] = (unsigned char)n;
    memcpy(to + 2, name, n);
    to[2 + n] = (unsigned char)v;
    memcpy(to + 3 + n, value, v);
    return 3 + n + v;
}

static int read_all(int fd, unsigned char *to, size_t size, long long deadline) {
    while (size) {
        struct pollfd waiting = {fd, POLLIN, 0};
        long long left = deadline - now_ms();
        ssize_t got;
        if (left <= 0 || poll(&waiting, 1, (int)left) <= 0) return -1;
        got = recv(fd, to, size, 0);
        if (got <= 0) return -1;
        to += got;
        size -= (size_t)got;
    }
    return 0;
}

int main(int argc, char **argv) {
    static unsigned char request[1024], frame[FRAME_MAX];
    unsigned char headers[512];
    const unsigned char empty_message[5] = {0};
    const char *preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    struct sockaddr_in address = {0};
    struct timeval limit = {TIMEOUT_MS / 1000, 0};
    long long deadline = now_ms() + TIMEOUT_MS;
    size_t used = strlen(preface), length = 0;
    int fd, is_http = (argc == 4 || argc == 5) && !strcmp(argv[3], "http");

    address.sin_family = AF_INET;
    if ((argc != 3 && !is_http) || inet_pton(AF_INET, argv[1], &address.sin_addr) != 1) {
        fprintf(stderr, "usage: health IPV4_ADDRESS PORT [http [PATH]]\n");
        return 2;
    }
    address.sin_port = htons((unsigned short)atoi(argv[2]));
    fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0) return 1;
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    if (connect(fd, (struct sockaddr *)&address, sizeof address)) return 1;

    if (is_http) {
        int size = snprintf((char *)request, sizeof request, "GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
                            argc == 5 ? argv[4] : "/");
        if (size >= (int)sizeof request || send(fd, request, (size_t)size, MSG_NOSIGNAL) != size) return 1;
        return read_all(fd, frame, 12, deadline) || memcmp(frame, "HTTP/1.1 200", 12);
    }

    length += put_header(headers + length, ":method", "POST");
    length += put_header(headers + length, ":scheme", "http");
    length += put_header(headers + length, ":path", "/grpc.health.v1.Health/Check");
    length += put_header(headers + length, ":authority", "localhost");
    length += put_header(headers + length, "content-type", "application/grpc");
    length += put_header(headers + length, "te", "trailers");
    memcpy(request, preface, used);
    used += put_frame(request + used, SETTINGS, 0, 0, NULL, 0);
    used += put_frame(request + used, HEADERS, 4, 1, headers, length); /* END_HEADERS */
    used += put_frame(request + used, DATA, 1, 1, empty_message, 5);   /* END_STREAM */
    if (send(fd, request, used, MSG_NOSIGNAL) != (ssize_t)used) return 1;

    for (;;) {
        unsigned char head[9];
        size_t size;
        if (read_all(fd, head, 9, deadline)) return 1;
        size = (size_t)head[0] << 16 | (size_t)head[1] << 8 | head[2];
        if (size > FRAME_MAX || read_all(fd, frame, size, deadline)) return 1;
        if (head[3] == SETTINGS && !(head[4] & 1)) {
            unsigned char settled[9];
            if (send(fd, settled, put_frame(settled, SETTINGS, 1, 0, NULL, 0), MSG_NOSIGNAL) != 9) return 1;
        } else if (head[3] == DATA && head[8] == 1) {
            return !(size >= 7 && !memcmp(frame, "\0\0\0\0\2\10\1", 7));
        } else if (head[3] == GOAWAY || (head[3] == HEADERS && head[4] & 1)) {
            return 1;
        }
    }
}
