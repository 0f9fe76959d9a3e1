# cython: language_level=3
"""fdatasync of several files at the same time, in one call without the GIL.

The log writer syncs one file for each partition that it wrote to. Files that are synced one after another each wait for
a separate commit of the file system's journal. Files that are synced at the same time share one commit. C threads sync
the files, because each Python thread would have to wait for the GIL of a busy event loop. The threads stay: to start one
takes 40 µs, and a broker may sync a thousand times per second.
"""

from cpython.mem cimport PyMem_Free, PyMem_Malloc

cdef extern from *:
    """
    #include <errno.h>
    #include <pthread.h>
    #include <unistd.h>

    #define HEADRACE_SYNC_THREADS 15

    /* The files of one call. ``next``: the first file that no thread has taken; ``left``: files that are not synced. */
    struct headrace_sync_job {
        const int *files; int *failures;
        int count, next, left;
        pthread_cond_t done;
        struct headrace_sync_job *following;
    };

    static pthread_mutex_t headrace_sync_mutex = PTHREAD_MUTEX_INITIALIZER;
    static pthread_cond_t headrace_sync_go = PTHREAD_COND_INITIALIZER;
    static struct headrace_sync_job *headrace_sync_jobs = NULL;  /* jobs with files that no thread has taken */
    static int headrace_sync_threads = 0, headrace_sync_idle = 0;

    /* Take the next file of a job, and sync it; the mutex is held before and after. */
    static void headrace_sync_one(struct headrace_sync_job *job) {
        int index = job->next++, result, failure;
        if (job->next == job->count) {
            struct headrace_sync_job **at = &headrace_sync_jobs;
            while (*at != job) at = &(*at)->following;
            *at = job->following;
        }
        pthread_mutex_unlock(&headrace_sync_mutex);
        do { result = fdatasync(job->files[index]); } while (result != 0 && errno == EINTR);
        failure = result != 0 ? errno : 0;
        pthread_mutex_lock(&headrace_sync_mutex);
        job->failures[index] = failure;
        if (--job->left == 0) pthread_cond_signal(&job->done);
    }

    static void *headrace_sync_serve(void *unused) {
        (void)unused;
        pthread_mutex_lock(&headrace_sync_mutex);
        for (;;) {
            while (headrace_sync_jobs == NULL) {
                headrace_sync_idle++;
                pthread_cond_wait(&headrace_sync_go, &headrace_sync_mutex);
                headrace_sync_idle--;
            }
            headrace_sync_one(headrace_sync_jobs);
        }
        return NULL;
    }

    /* Start threads until there are ``wanted``; without a further one, the caller syncs more files itself. */
    static void headrace_sync_start(int wanted) {
        pthread_t thread;
        pthread_attr_t small;
        if (headrace_sync_threads >= wanted || pthread_attr_init(&small) != 0) return;
        pthread_attr_setstacksize(&small, 64 * 1024);
        pthread_attr_setdetachstate(&small, PTHREAD_CREATE_DETACHED);
        while (headrace_sync_threads < wanted && pthread_create(&thread, &small, headrace_sync_serve, NULL) == 0)
            headrace_sync_threads++;
        pthread_attr_destroy(&small);
    }

    static void headrace_sync_start_all(void) {
        pthread_mutex_lock(&headrace_sync_mutex);
        headrace_sync_start(HEADRACE_SYNC_THREADS);
        pthread_mutex_unlock(&headrace_sync_mutex);
    }

    /* A process that was forked has none of the threads. */
    static void headrace_sync_forked(void) {
        pthread_mutex_init(&headrace_sync_mutex, NULL);
        pthread_cond_init(&headrace_sync_go, NULL);
        headrace_sync_jobs = NULL;
        headrace_sync_threads = headrace_sync_idle = 0;
    }

    static void headrace_sync_all(const int *files, int *failures, int count) {
        struct headrace_sync_job job = { files, failures, count, 0, count, PTHREAD_COND_INITIALIZER, NULL };
        pthread_mutex_lock(&headrace_sync_mutex);
        job.following = headrace_sync_jobs;
        headrace_sync_jobs = &job;
        int wanted = count - 1 < HEADRACE_SYNC_THREADS ? count - 1 : HEADRACE_SYNC_THREADS;
        headrace_sync_start(wanted);
        for (int i = 0; i < wanted && i < headrace_sync_idle; i++) pthread_cond_signal(&headrace_sync_go);
        while (job.next < count) headrace_sync_one(&job);
        while (job.left > 0) pthread_cond_wait(&job.done, &headrace_sync_mutex);
        pthread_mutex_unlock(&headrace_sync_mutex);
        pthread_cond_destroy(&job.done);
    }

    static void headrace_sync_prepare(void) { pthread_atfork(NULL, NULL, headrace_sync_forked); }
    """
    void headrace_sync_all(const int* files, int* failures, int count) noexcept nogil
    void headrace_sync_start_all() noexcept
    void headrace_sync_prepare() noexcept

headrace_sync_prepare()


def start_sync_threads():
    """Start all threads now, and not with the first files."""
    headrace_sync_start_all()


def sync_descriptors(descriptors):
    """Force the data of all given files to the disk; returns 0 or an errno for each file."""
    cdef list given = list(descriptors)
    cdef int count = <int>len(given)
    cdef int* numbers = <int*>PyMem_Malloc(2 * max(count, 1) * sizeof(int))
    if numbers == NULL:
        raise MemoryError
    try:
        for index in range(count):
            numbers[index] = given[index]
        if count:
            with nogil:
                headrace_sync_all(numbers, numbers + count, count)
        return [numbers[count + index] for index in range(count)]
    finally:
        PyMem_Free(numbers)
