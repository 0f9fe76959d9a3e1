# cython: language_level=3
"""Read from the page cache in one system call: preadv2 with RWF_NOWAIT, into a new bytes object, without the GIL.

Python's os.preadv cannot fill a bytes object. A separate check whether the bytes are cached would need one system call
for each 64 KiB, and each call releases the GIL.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize

cdef extern from *:
    """
    #define _GNU_SOURCE
    #include <errno.h>
    #include <sys/uio.h>
    #include <unistd.h>

    #define HEADRACE_NOT_CACHED -2

    /* The number of bytes, fewer only at the end of the file; HEADRACE_NOT_CACHED; or -1 with errno. */
    static ssize_t headrace_read_cached(int fd, char *into, size_t size, off_t position) {
        size_t done = 0;
        int flags = RWF_NOWAIT;
        while (done < size) {
            struct iovec part = {into + done, size - done};
            ssize_t got = preadv2(fd, &part, 1, position + (off_t)done, flags);
            if (got > 0) { done += (size_t)got; continue; }
            if (got == 0) break;
            if (errno == EINTR) continue;
            if (errno == EAGAIN) return HEADRACE_NOT_CACHED;
            /* A file system without RWF_NOWAIT: read in the usual way. */
            if (flags != 0 && (errno == EOPNOTSUPP || errno == EINVAL || errno == ENOSYS)) { flags = 0; continue; }
            return -1;
        }
        return (ssize_t)done;
    }
    """
    enum: HEADRACE_NOT_CACHED
    int errno
    Py_ssize_t headrace_read_cached(int fd, char* into, size_t size, long long position) nogil


def read_cached(int fd, Py_ssize_t size, long long position):
    """Read ``size`` bytes from ``position``, fewer only at the end of the file. Returns None if the bytes are not in
    the page cache. Raises OSError."""
    cdef Py_ssize_t got
    cdef int failure = 0
    cdef bytes data = PyBytes_FromStringAndSize(NULL, size)
    cdef char* into = PyBytes_AS_STRING(data)
    with nogil:
        got = headrace_read_cached(fd, into, size, position)
        if got == -1:
            failure = errno
    if got == HEADRACE_NOT_CACHED:
        return None
    if got < 0:
        import os

        raise OSError(failure, os.strerror(failure))
    return data if got == size else data[:got]
