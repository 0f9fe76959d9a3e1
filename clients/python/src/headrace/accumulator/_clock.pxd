# cython: language_level=3
"""Clock readings and a sleep without the GIL, as C functions."""

cdef extern from *:
    """
    #include <time.h>
    #include <unistd.h>
    static inline long long headrace_now_ms(void) {
        struct timespec t; clock_gettime(CLOCK_REALTIME, &t);
        return (long long)t.tv_sec * 1000 + t.tv_nsec / 1000000;
    }
    static inline double headrace_monotonic_s(void) {
        struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t);
        return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
    }
    """
    long long now_ms "headrace_now_ms"() noexcept nogil
    double monotonic_s "headrace_monotonic_s"() noexcept nogil
    int usleep(unsigned int microseconds) noexcept nogil
