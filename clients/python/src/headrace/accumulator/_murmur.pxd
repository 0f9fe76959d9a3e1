# cython: language_level=3

cdef unsigned int hash_key(const unsigned char* data, Py_ssize_t length) noexcept nogil
