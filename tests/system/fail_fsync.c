/* LD_PRELOAD: fdatasync and fsync that fail with EIO when a test says so.
 *
 * FAIL_FSYNC_CONTROL names a file that the test writes while the node runs: "NTH TEXT". The NTH call (from 1) on a file
 * whose path contains TEXT fails once, and the control file is removed: so the test sees that it has happened. The call
 * does not reach the kernel. What Linux makes of the pages (clean, and not on the disk) is left to the power loss that
 * follows: headrace_core.testing.power_loss.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;
static char counted_for[PATH_MAX + 32];
static long seen;

static int strikes(int fd) {
    const char *control = getenv("FAIL_FSYNC_CONTROL");
    if (control == NULL) return 0;
    FILE *file = fopen(control, "re");
    if (file == NULL) return 0;
    char order[PATH_MAX + 32] = "", text[PATH_MAX] = "", link[64], path[PATH_MAX];
    long nth = 0;
    if (fgets(order, sizeof order, file) == NULL || sscanf(order, "%ld %4000s", &nth, text) != 2) nth = 0;
    fclose(file);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (nth <= 0 || size < 0) return 0;
    path[size] = '\0';
    if (strstr(path, text) == NULL) return 0;
    pthread_mutex_lock(&counting);
    if (strcmp(order, counted_for) != 0) {
        snprintf(counted_for, sizeof counted_for, "%s", order);
        seen = 0;
    }
    int now = ++seen == nth && unlink(control) == 0;
    if (now) counted_for[0] = '\0';
    pthread_mutex_unlock(&counting);
    return now;
}

static int forced(const char *name, int fd) {
    int saved = errno;
    if (strikes(fd)) {
        errno = EIO;
        return -1;
    }
    errno = saved;
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    return real(fd);
}

int fdatasync(int fd) { return forced("fdatasync", fd); }

int fsync(int fd) { return forced("fsync", fd); }
