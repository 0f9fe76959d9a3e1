# cython: language_level=3
"""fdatasync of several files at the same time, in one call without the GIL.

The log writer syncs one file for each partition that it wrote to. Files that are synced one after another each wait for
a separate commit of the file system's journal. Files that are synced at the same time share one commit. C threads sync
the files, because each Python thread would have to wait for the GIL of a busy event loop.
"""

cdef extern from *:
    """
    #include <errno.h>
    #include <pthread.h>
    #include <unistd.h>

    #define HEADRACE_SYNC_MAX 16

    struct headrace_sync_one { int fd; int failure; };

    static void *headrace_sync_run(void *argument) {
        struct headrace_sync_one *one = argument;
        int result;
        do { result = fdatasync(one->fd); } while (result != 0 && errno == EINTR);
        one->failure = result != 0 ? errno : 0;
        return NULL;
    }

    /* Up to HEADRACE_SYNC_MAX files; the caller's thread takes the first. If a thread cannot be
       started, the caller's thread syncs its file. */
    static void headrace_sync_some(struct headrace_sync_one *files, int count) {
        pthread_t threads[HEADRACE_SYNC_MAX];
        int started[HEADRACE_SYNC_MAX];
        pthread_attr_t small;
        int plain = pthread_attr_init(&small);
        if (plain == 0) pthread_attr_setstacksize(&small, 64 * 1024);
        for (int i = 1; i < count; i++)
            started[i] = pthread_create(&threads[i], plain == 0 ? &small : NULL, headrace_sync_run, &files[i]) == 0;
        headrace_sync_run(&files[0]);
        for (int i = 1; i < count; i++) {
            if (started[i]) pthread_join(threads[i], NULL);
            else headrace_sync_run(&files[i]);
        }
        if (plain == 0) pthread_attr_destroy(&small);
    }
    """
    enum: HEADRACE_SYNC_MAX
    struct headrace_sync_one:
        int fd
        int failure
    void headrace_sync_some(headrace_sync_one* files, int count) noexcept nogil


def sync_descriptors(descriptors):
    """Force the data of all given files to the disk; returns 0 or an errno for each file."""
    cdef headrace_sync_one files[HEADRACE_SYNC_MAX]
    cdef int count
    cdef list failures = []
    cdef list rest = list(descriptors)
    while rest:
        some, rest = rest[:HEADRACE_SYNC_MAX], rest[HEADRACE_SYNC_MAX:]
        count = 0
        for descriptor in some:
            files[count].fd = descriptor
            files[count].failure = 0
            count += 1
        with nogil:
            headrace_sync_some(files, count)
        failures += [files[index].failure for index in range(count)]
    return failures
