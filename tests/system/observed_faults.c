/* LD_PRELOAD: a disk that is slow or fails, and a clock that is wrong, while a test says so.
 *
 * OBSERVED_FAULTS names a directory. The test writes these files while the node runs, and removes them again:
 *   slow   milliseconds that each fdatasync and fsync takes longer
 *   fail   a text: fdatasync and fsync of a file whose path contains it fail with EIO
 *   clock  seconds by which CLOCK_REALTIME is ahead
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int (*real_clock_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void prepare(void) {
    real_clock_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
}

/* The contents of a file of the test; 0 if it is not there. */
static int order(const char *name, char *text, size_t size) {
    char path[PATH_MAX];
    const char *directory = getenv("OBSERVED_FAULTS");
    if (directory == NULL) return 0;
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = fopen(path, "re");
    if (file == NULL) return 0;
    int found = fgets(text, (int)size, file) != NULL;
    fclose(file);
    return found;
}

static int forced(const char *name, int fd) {
    int saved = errno;
    char text[PATH_MAX] = "", link[64], path[PATH_MAX];
    if (order("slow", text, sizeof text)) usleep((useconds_t)atoi(text) * 1000);
    if (order("fail", text, sizeof text)) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t size = readlink(link, path, sizeof path - 1);
        if (size >= 0) {
            path[size] = '\0';
            if (strstr(path, text) != NULL) {
                errno = EIO;
                return -1;
            }
        }
    }
    errno = saved;
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    return real(fd);
}

int fdatasync(int fd) { return forced("fdatasync", fd); }

int fsync(int fd) { return forced("fsync", fd); }

int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = real_clock_gettime(clock, time);
    if (result == 0 && clock == CLOCK_REALTIME) {
        static __thread long looked_s = -1;
        static __thread long ahead_s = 0;
        if (time->tv_sec != looked_s) { /* once a second */
            int saved = errno;
            char text[64] = "";
            looked_s = time->tv_sec;
            ahead_s = order("clock", text, sizeof text) ? atol(text) : 0;
            errno = saved;
        }
        time->tv_sec += ahead_s;
    }
    return result;
}
