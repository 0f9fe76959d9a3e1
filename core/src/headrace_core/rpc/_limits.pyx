# cython: language_level=3, boundscheck=False, wraparound=False
"""Counts the items in the bytes of a protobuf message, before it is parsed; see limits.py."""

from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.string cimport memset

cdef enum:
    NO_COUNT = -1

cdef struct Step:
    int count  # index of the field's limit, or NO_COUNT
    bint is_packed
    long name_max  # maximum bytes of a name; -1: no name
    long fields
    void *inner  # the Plan of a message in the field, or NULL


cdef class Plan:
    """The fields of a message that are counted or are names. ``steps``: number of the field -> (its name, index of its
    limit or -1, packed numbers?, maximum bytes of a name or -1, plan of its message or None, fields of the message)."""

    cdef Step *_steps
    cdef unsigned long _size
    cdef dict _names
    cdef list _kept

    def __cinit__(self, dict steps):
        cdef Step *step
        self._kept, self._names = [], {}
        self._size = max(steps, default=0) + 1
        self._steps = <Step *>PyMem_Malloc(self._size * sizeof(Step))
        if self._steps == NULL:
            raise MemoryError
        memset(self._steps, 0, self._size * sizeof(Step))
        for number in range(self._size):
            step = &self._steps[number]
            name, count, is_packed, name_max, inner, fields = steps.get(number, ("", NO_COUNT, False, -1, None, 0))
            self._names[number] = name
            step.count, step.is_packed, step.name_max, step.fields = count, is_packed, name_max, fields
            if inner is not None:
                self._kept.append(<Plan?>inner)
                step.inner = <void *>inner

    def __dealloc__(self):
        PyMem_Free(self._steps)


cdef class Count:
    """The result of one walk. ``wrong``: what is wrong with the message, "" if nothing is: ``items`` (``number``: index
    of the limit), ``fields``, ``name`` (``name`` of the field, ``number`` of bytes) or ``kind`` (``number``)."""

    cdef readonly str wrong, name
    cdef readonly unsigned long long number
    cdef const unsigned char *_data
    cdef unsigned long long _total
    cdef long long *_left
    cdef long long _fields

    def __init__(self, bytes data, Plan plan, tuple most, long long fields):
        """``most``: the limits; ``fields``: number of fields without a limit that the message itself may have."""
        cdef Py_ssize_t index
        self.wrong = self.name = ""
        self._data, self._total, self._fields = data, len(data), fields
        self._left = <long long *>PyMem_Malloc((len(most) + 1) * sizeof(long long))
        if self._left == NULL:
            raise MemoryError
        try:
            for index in range(len(most)):
                self._left[index] = most[index]
            self._walk(0, self._total, plan)
        finally:
            PyMem_Free(self._left)

    cdef int _refuse(self, str wrong, unsigned long long number) except -1:
        self.wrong, self.number = wrong, number
        return 1

    cdef int _varint(self, unsigned long long *at, unsigned long long *value) noexcept:
        """Read a varint; returns 1 at the end of the data."""
        cdef int shift = 0
        cdef unsigned char byte
        value[0] = 0
        while True:
            if at[0] >= self._total:
                return 1
            byte = self._data[at[0]]
            at[0] += 1
            if shift < 64:
                value[0] |= <unsigned long long>(byte & 127) << shift
            if byte < 128 or shift > 63:
                return 0
            shift += 7

    cdef int _walk(self, unsigned long long at, unsigned long long end, Plan plan) except -1:
        """Returns 1 after a refusal, and at the end of truncated data, which the parser reports."""
        cdef unsigned long long tag, number, size, stop, each
        cdef long long added
        cdef Step *step
        while at < end:
            if self._varint(&at, &tag):
                return 1
            number = tag >> 3
            step = &plan._steps[number] if number < plan._size else NULL
            if step == NULL or step.count == NO_COUNT:
                self._fields -= 1
                if self._fields < 0:
                    return self._refuse("fields", 0)
            if tag & 7 == 2:
                if self._varint(&at, &size):
                    return 1
                stop = self._total if size > self._total - at else at + size
                if step != NULL:
                    if step.count != NO_COUNT:
                        added = 1
                        if step.is_packed:  # each number ends with a byte without a continuation bit
                            added = 0
                            for each in range(at, stop):
                                added += self._data[each] < 128
                        self._left[step.count] -= added
                        if self._left[step.count] < 0:
                            return self._refuse("items", step.count)
                    if step.name_max >= 0 and size > <unsigned long long>step.name_max:
                        self.name = plan._names[number]
                        return self._refuse("name", size)
                    if step.inner != NULL:
                        self._fields += step.fields
                        if self._walk(at, min(stop, end), <Plan>step.inner):
                            return 1
                at = stop
            elif tag & 7 == 0:
                if step != NULL and step.count != NO_COUNT:
                    self._left[step.count] -= 1
                    if self._left[step.count] < 0:
                        return self._refuse("items", step.count)
                if self._varint(&at, &size):
                    return 1
            elif tag & 7 == 5:
                at += 4
            elif tag & 7 == 1:
                at += 8
            else:  # groups: proto3 does not have them, and items after a group could not be counted
                return self._refuse("kind", tag & 7)
        return 0
