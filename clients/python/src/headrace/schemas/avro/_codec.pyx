"""Avro's binary encoding, compiled: one small object for each type of a schema writes or reads its values.

``compile.py`` builds the trees of Writers and Readers from schemas; this module does not know schemas.

    int, long       zigzag varint                     array, map   blocks: count, items ... 0
    float, double   4 and 8 bytes, little-endian      union        index of the branch, value
    bytes, string   length, bytes                     record       its fields, one after the other

A record is written from a dict or from the attributes of an object, and is read to a dict. While a value is written or
read, ``names`` and ``indexes`` record the path to the current field. An error takes its path from ``names`` and
``indexes``, so that the fast path has no ``try``. A reader limits the cost of hostile bytes: nesting by DEPTH_MAX,
items by the size of the data. Source: the Avro specification 1.12, "Binary encoding".
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_FromDouble
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.object cimport PyObject
from libc.math cimport isinf
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy

import datetime
import decimal
import enum
import numbers
import operator
import uuid
from collections.abc import Mapping, Sequence

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL
    object PyUnicode_DecodeUTF8(const char* data, Py_ssize_t size, const char* errors)
    PyObject* PyDict_GetItemWithError(object mapping, object key) except? NULL
    long long PyLong_AsLongLongAndOverflow(object value, int* overflow) except? -1

cdef enum:
    FRAMES = 128  # maximum number of frames of the path; the first frame is unused
    SCORE_DEPTH = 4  # depth to which the choice of a union's branch looks: each level multiplies its cost
    CLASSES_MAX = 256  # maximum number of classes whose attributes a record caches
    DECIMAL_BYTES_MAX = 4096

cdef int64_t INT_LEAST = -2147483648
cdef int64_t INT_MOST = 2147483647
cdef int64_t LONG_MOST = 0x7FFFFFFFFFFFFFFF
cdef int64_t LONG_LEAST = -LONG_MOST - 1

#: The largest number of nested records, arrays and maps in a value.
DEPTH_MAX = FRAMES - 1

#: The number of array and map items in a message may exceed the message's size in bytes by at most this number, because
#: items such as null need no byte.
cdef Py_ssize_t FREE_ITEMS = 100_000

#: The names of numpy's boolean type in numpy 1 and numpy 2.
NUMPY_BOOLEANS = ("bool_", "bool")

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_LOCAL_EPOCH = datetime.datetime(1970, 1, 1)
_FIRST_DAY = datetime.date(1970, 1, 1).toordinal()
_UTC = datetime.timezone.utc
_MICROSECOND = datetime.timedelta(microseconds=1)
_FIRST_MICROSECOND = (datetime.datetime.min - _LOCAL_EPOCH) // _MICROSECOND
_LAST_MICROSECOND = (datetime.datetime.max - _LOCAL_EPOCH) // _MICROSECOND


class Mismatch(Exception):
    """The schema does not allow the value. ``path``: the place within the whole value, such as ``items[3].sku``."""

    def __init__(self, reason, path=""):
        super().__init__(reason)
        self.reason, self.path = reason, path


class Damaged(Exception):
    """The bytes are not a valid value of the schema. ``path``: the field that was being read."""

    def __init__(self, reason, path=""):
        super().__init__(reason)
        self.reason, self.path = reason, path


class Unreadable(Damaged):
    """The writer's schema allows the value, but the reader's schema does not."""


cdef object shown(object value):
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


cdef object wrong(object value, str wanted):
    return Mismatch(f"must be {wanted}, not {type(value).__name__} {shown(value)}")


cdef object path_of(PyObject** names, Py_ssize_t* indexes, int depth):
    cdef int at
    parts = []
    for at in range(1, depth + 1):
        if names[at] is not NULL:
            parts.append(f".{<object>names[at]}" if parts else f"{<object>names[at]}")
        elif indexes[at] >= 0:
            parts.append(f"[{indexes[at]}]")
    return "".join(parts)


# --- writing ----------------------------------------------------------------------------------------------------------


cdef class Out:
    """A growing buffer, and the path to the value that is being written."""

    cdef unsigned char* data
    cdef Py_ssize_t size
    cdef Py_ssize_t capacity
    cdef int depth
    cdef PyObject* names[FRAMES]
    cdef Py_ssize_t indexes[FRAMES]
    cdef list kept  # keeps the keys of maps alive, to which ``names`` refers

    def __cinit__(self):
        self.capacity = 512
        self.data = <unsigned char*>PyMem_Malloc(self.capacity)
        if self.data is NULL:
            raise MemoryError
        self.kept = []

    def __dealloc__(self):
        PyMem_Free(self.data)

    cdef int room(self, Py_ssize_t more) except -1:
        cdef Py_ssize_t wanted
        cdef unsigned char* bigger
        if self.size + more <= self.capacity:
            return 0
        wanted = max(self.capacity * 2, self.size + more)
        bigger = <unsigned char*>PyMem_Realloc(self.data, wanted)
        if bigger is NULL:
            raise MemoryError
        self.data = bigger
        self.capacity = wanted
        return 0

    cdef inline int raw(self, const void* source, Py_ssize_t size) except -1:
        if self.size + size > self.capacity:
            self.room(size)
        memcpy(self.data + self.size, source, size)
        self.size += size
        return 0

    cdef inline int long_(self, int64_t value) except -1:
        cdef uint64_t left = (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)
        if self.size + 10 > self.capacity:
            self.room(10)
        while left >= 0x80:
            self.data[self.size] = <unsigned char>(left & 0x7F) | 0x80
            self.size += 1
            left >>= 7
        self.data[self.size] = <unsigned char>left
        self.size += 1
        return 0

    cdef inline int enter(self) except -1:
        self.depth += 1
        if self.depth >= FRAMES:
            self.depth -= 1
            raise Mismatch(f"is nested more than {DEPTH_MAX} levels deep")
        self.names[self.depth] = NULL
        self.indexes[self.depth] = -1
        return 0


cdef class Writer:
    """Writes values of one type."""

    cdef int write(self, Out out, object value) except -1:
        raise NotImplementedError

    cdef long score(self, object value, int depth) except -1:
        """A score of how well a value fits this branch of a union: 0 not at all, 1 after a conversion; higher is
        better."""
        raise NotImplementedError

    cdef str called(self):
        """The name of this type in error messages."""
        raise NotImplementedError


cdef class NullWriter(Writer):
    cdef int write(self, Out out, object value) except -1:
        if value is not None:
            raise wrong(value, "null (None)")
        return 0

    cdef long score(self, object value, int depth) except -1:
        return 4 if value is None else 0

    cdef str called(self):
        return "null"


cdef class BooleanWriter(Writer):
    cdef int write(self, Out out, object value) except -1:
        cdef unsigned char byte
        if value is True:
            byte = 1
        elif value is False:
            byte = 0
        elif type(value).__name__ in NUMPY_BOOLEANS:
            byte = 1 if value else 0
        else:
            raise wrong(value, "a boolean")
        return out.raw(&byte, 1)

    cdef long score(self, object value, int depth) except -1:
        return 4 if value is True or value is False or type(value).__name__ in NUMPY_BOOLEANS else 0

    cdef str called(self):
        return "boolean"


cdef bint is_whole(object value):
    return type(value) is int or (
        not isinstance(value, bool) and (isinstance(value, int) or isinstance(value, numbers.Integral))
    )


cdef int64_t whole(object value, int64_t least, int64_t most, str wanted) except? -1:
    cdef int overflow = 0
    cdef int64_t found
    if not is_whole(value):
        raise wrong(value, wanted)
    if not isinstance(value, int):
        value = operator.index(value)
    found = PyLong_AsLongLongAndOverflow(value, &overflow)
    if overflow or found < least or found > most:
        raise Mismatch(f"must be {wanted} of {32 if most == INT_MOST else 64} bits, {shown(value)} is too large")
    return found


cdef class IntWriter(Writer):
    cdef int write(self, Out out, object value) except -1:
        return out.long_(whole(value, INT_LEAST, INT_MOST, "an int"))

    cdef long score(self, object value, int depth) except -1:
        return 4 if is_whole(value) and INT_LEAST <= value <= INT_MOST else 0

    cdef str called(self):
        return "int"


cdef class LongWriter(Writer):
    cdef int write(self, Out out, object value) except -1:
        return out.long_(whole(value, LONG_LEAST, LONG_MOST, "a long"))

    cdef long score(self, object value, int depth) except -1:
        return 3 if is_whole(value) and -(1 << 63) <= value < 1 << 63 else 0

    cdef str called(self):
        return "long"


cdef double real(object value, str wanted) except? -1.0:
    if type(value) is float:
        return PyFloat_AS_DOUBLE(value)
    cdef double found
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise wrong(value, wanted)
    try:
        found = float(value)
    except OverflowError:
        raise Mismatch(f"must be {wanted}, {shown(value)} is too large") from None
    if isinstance(value, numbers.Integral) and found != value:
        raise Mismatch(f"must be {wanted}, {shown(value)} would lose digits; pass float(value) if it may")
    return found


cdef bint is_real(object value):
    return type(value) is float or (not isinstance(value, bool) and isinstance(value, numbers.Real))


cdef class FloatWriter(Writer):
    cdef int write(self, Out out, object value) except -1:
        cdef double exact = real(value, "a float")
        cdef float single = <float>exact
        if isinf(single) and not isinf(exact):
            raise Mismatch(f"must be a float of 32 bits, {shown(value)} is too large")
        if single != exact and isinstance(value, numbers.Integral):
            raise Mismatch(f"must be a float of 32 bits, {shown(value)} would lose digits; pass float(value) if it may")
        return out.raw(&single, 4)

    cdef long score(self, object value, int depth) except -1:
        if isinstance(value, float):
            return 3
        return 1 if is_real(value) else 0

    cdef str called(self):
        return "float"


cdef class DoubleWriter(Writer):
    cdef int write(self, Out out, object value) except -1:
        cdef double exact = real(value, "a double")
        return out.raw(&exact, 8)

    cdef long score(self, object value, int depth) except -1:
        if isinstance(value, float):
            return 4
        return 2 if is_real(value) else 0

    cdef str called(self):
        return "double"


cdef bint is_binary(object value):
    return isinstance(value, (bytes, bytearray, memoryview))


cdef class BytesWriter(Writer):
    cdef int write(self, Out out, object value) except -1:
        cdef Py_buffer view
        if type(value) is bytes:
            out.long_(PyBytes_GET_SIZE(value))
            return out.raw(PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
        if not is_binary(value):
            raise wrong(value, "bytes")
        PyObject_GetBuffer(value, &view, PyBUF_SIMPLE)
        try:
            out.long_(view.len)
            out.raw(view.buf, view.len)
        finally:
            PyBuffer_Release(&view)
        return 0

    cdef long score(self, object value, int depth) except -1:
        return 3 if is_binary(value) else 0

    cdef str called(self):
        return "bytes"


cdef class StringWriter(Writer):
    cdef int write(self, Out out, object value) except -1:
        cdef Py_ssize_t size = 0
        cdef const char* data
        if not isinstance(value, str):
            raise wrong(value, "a string")
        data = PyUnicode_AsUTF8AndSize(value, &size)
        out.long_(size)
        return out.raw(data, size)

    cdef long score(self, object value, int depth) except -1:
        return 3 if isinstance(value, str) else 0

    cdef str called(self):
        return "string"


cdef class FixedWriter(Writer):
    cdef Py_ssize_t length
    cdef str name

    def __init__(self, str name, Py_ssize_t length):
        self.name, self.length = name, length

    cdef int write(self, Out out, object value) except -1:
        if not is_binary(value):
            raise wrong(value, f"bytes of the fixed {self.name}")
        data = bytes(value)
        if len(data) != self.length:
            raise Mismatch(f"must be {self.length} bytes (fixed {self.name}), not {len(data)}")
        return out.raw(PyBytes_AS_STRING(data), self.length)

    cdef long score(self, object value, int depth) except -1:
        return 4 if is_binary(value) and len(value) == self.length else 0

    cdef str called(self):
        return f"fixed {self.name}"


cdef class EnumWriter(Writer):
    cdef str name
    cdef dict positions

    def __init__(self, str name, symbols):
        self.name, self.positions = name, {symbol: at for at, symbol in enumerate(symbols)}

    cdef int write(self, Out out, object value) except -1:
        cdef object at = self._position(value)
        if at is None:
            raise Mismatch(f"must be a symbol of enum {self.name}, not {shown(value)}")
        return out.long_(at)

    cdef object _position(self, object value):
        if isinstance(value, enum.Enum) and not isinstance(value, str):
            value = value.value if isinstance(value.value, str) else value.name
        return self.positions.get(value) if isinstance(value, str) else None

    cdef long score(self, object value, int depth) except -1:
        return 4 if self._position(value) is not None else 0

    cdef str called(self):
        return f"enum {self.name}"


cdef class ArrayWriter(Writer):
    cdef public Writer item

    cdef int write(self, Out out, object value) except -1:
        cdef Py_ssize_t index = 0, count
        if not isinstance(value, (list, tuple)):
            if isinstance(value, (str, bytes, bytearray, Mapping)) or not hasattr(value, "__iter__"):
                raise wrong(value, "a list")
            value = list(value)
        count = len(value)
        if not count:
            return out.long_(0)
        out.long_(count)
        out.enter()
        for each in value:
            out.indexes[out.depth] = index
            self.item.write(out, each)
            index += 1
        if index != count:
            raise Mismatch("changed its length while it was written")
        out.depth -= 1
        return out.long_(0)

    cdef long score(self, object value, int depth) except -1:
        if not isinstance(value, Sequence) or isinstance(value, (str, bytes, bytearray, memoryview)):
            return 0
        if len(value) and depth < SCORE_DEPTH and not self.item.score(value[0], depth + 1):
            return 0
        return 3

    cdef str called(self):
        return "array"


cdef class MapWriter(Writer):
    cdef public Writer value

    cdef int write(self, Out out, object value) except -1:
        cdef Py_ssize_t size = 0
        cdef const char* data
        if type(value) is not dict:
            if not isinstance(value, Mapping):
                raise wrong(value, "a dict (map)")
            value = dict(value)
        entries = list((<dict>value).items())  # a copy: the values' own code (properties) could change the dict
        if not entries:
            return out.long_(0)
        out.long_(len(entries))
        out.enter()
        out.kept.append(None)
        for key, each in entries:
            if not isinstance(key, str):
                raise wrong(key, "a string, as the key of a map")
            out.kept[-1] = key
            out.names[out.depth] = <PyObject*>key
            data = PyUnicode_AsUTF8AndSize(key, &size)
            out.long_(size)
            out.raw(data, size)
            self.value.write(out, each)
        out.kept.pop()
        out.depth -= 1
        return out.long_(0)

    cdef long score(self, object value, int depth) except -1:
        if not isinstance(value, Mapping):
            return 0
        if depth < SCORE_DEPTH:
            for key, each in value.items():
                if not isinstance(key, str) or not self.value.score(each, depth + 1):
                    return 0
        return 2

    cdef str called(self):
        return "map"


cdef class RecordWriter(Writer):
    """``fill`` sets the fields after the creation, because a type may contain itself. ``defaults``: for each field, the
    encoded default, None if there is no default, or a text that says why the default is wrong. ``attributes_of(class,
    names)``: names of the attributes that hold the fields, or None for a class that cannot be written as a record."""

    cdef readonly str name
    cdef tuple names
    cdef tuple writers
    cdef tuple defaults
    cdef object attributes_of
    cdef dict _attributes

    def __init__(self, str name, attributes_of):
        self.name, self.attributes_of, self._attributes = name, attributes_of, {}

    def fill(self, names, writers, defaults):
        self.names, self.writers, self.defaults = tuple(names), tuple(writers), tuple(defaults)

    cdef int write(self, Out out, object value) except -1:
        cdef Py_ssize_t at, count = len(self.names)
        cdef PyObject* found
        cdef object name
        cdef tuple attributes
        if not isinstance(value, dict):
            attributes = self._attributes_of(value)
            if attributes is not None:
                out.enter()
                for at in range(count):
                    out.names[out.depth] = <PyObject*>self.names[at]
                    name = attributes[at]
                    if name is None:
                        self._absent(out, at)
                    else:
                        (<Writer>self.writers[at]).write(out, getattr(value, name))
                out.depth -= 1
                return 0
            if not isinstance(value, Mapping):
                raise wrong(value, f"a dict, dataclass or model (record {self.name})")
            value = dict(value)
        out.enter()
        for at in range(count):
            name = self.names[at]
            out.names[out.depth] = <PyObject*>name
            found = PyDict_GetItemWithError(value, name)
            if found is NULL:
                self._absent(out, at)
            else:
                (<Writer>self.writers[at]).write(out, <object>found)
        out.depth -= 1
        return 0

    cdef int _absent(self, Out out, Py_ssize_t at) except -1:
        """Write the default of a field that the value does not have."""
        encoded = self.defaults[at]
        if isinstance(encoded, bytes):
            return out.raw(PyBytes_AS_STRING(encoded), PyBytes_GET_SIZE(encoded))
        if encoded is not None:
            raise Mismatch(f"is missing, and {encoded}")
        if isinstance(self.writers[at], UnionWriter) and (<UnionWriter>self.writers[at]).null >= 0:
            return out.long_((<UnionWriter>self.writers[at]).null)
        raise Mismatch(f"is missing, and record {self.name} has no default for it")

    cdef tuple _attributes_of(self, object value):
        kind = type(value)
        try:
            return self._attributes[kind]
        except KeyError:
            pass
        found = self.attributes_of(kind, self.names)
        if len(self._attributes) >= CLASSES_MAX:
            self._attributes.clear()
        self._attributes[kind] = found
        return found

    cdef long score(self, object value, int depth) except -1:
        cdef Py_ssize_t at
        cdef long found = 4
        cdef tuple attributes = None
        if not isinstance(value, Mapping):
            attributes = self._attributes_of(value)
            if attributes is None:
                return 0
            if type(value).__name__ == self.name.rpartition(".")[2]:
                return 1_000_000
        for at in range(len(self.names)):
            name = self.names[at] if attributes is None else attributes[at]
            if name is not None and (attributes is not None or name in value):
                each = value[name] if attributes is None else getattr(value, name)
                if depth < SCORE_DEPTH and not (<Writer>self.writers[at]).score(each, depth + 1):
                    return 0
                found += 1
            elif self.defaults[at] is None and not (
                isinstance(self.writers[at], UnionWriter) and (<UnionWriter>self.writers[at]).null >= 0
            ):
                return 0
        return found

    cdef str called(self):
        return f"record {self.name}"


cdef class UnionWriter(Writer):
    """``names``: the names of the branches, for values that name their branch: ``("com.acme.Cat", {...})``, or a dict
    with the key ``-type``."""

    cdef tuple branches
    cdef dict places
    cdef Py_ssize_t null
    cdef Py_ssize_t only

    def __init__(self):
        self.null = self.only = -1

    def fill(self, branches, names):
        self.branches = tuple(branches)
        self.places = {}
        for at, name in enumerate(names):
            for each in (name, name.rpartition(".")[2]):
                self.places.setdefault(each, at)
            if name == "null":
                self.null = at
        others = [at for at in range(len(self.branches)) if at != self.null]
        self.only = others[0] if len(others) == 1 else -1

    cdef int write(self, Out out, object value) except -1:
        cdef Py_ssize_t at
        if value is None and self.null >= 0:
            return out.long_(self.null)
        if self.only >= 0 and not isinstance(value, (tuple, dict)):
            out.long_(self.only)
            return (<Writer>self.branches[self.only]).write(out, value)
        named = None
        if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str):
            named, inner = self.places.get(value[0]), value[1]
        elif isinstance(value, dict) and "-type" in value:
            named, inner = self.places.get(value["-type"]), value
        if named is not None:
            out.long_(named)
            return (<Writer>self.branches[named]).write(out, inner)
        at = self.only if self.only >= 0 else self._best(value, 0)
        if at < 0:
            raise wrong(value, f"one of {', '.join([(<Writer>each).called() for each in self.branches])}")
        out.long_(at)
        return (<Writer>self.branches[at]).write(out, value)

    cdef Py_ssize_t _best(self, object value, int depth) except -2:
        cdef Py_ssize_t at, best = -1
        cdef long score, most = 0
        for at in range(len(self.branches)):
            score = (<Writer>self.branches[at]).score(value, depth)
            if score > most:
                best, most = at, score
        return best

    cdef long score(self, object value, int depth) except -1:
        if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str) and value[0] in self.places:
            return 4
        return 3 if depth >= SCORE_DEPTH or self._best(value, depth + 1) >= 0 else 0

    cdef str called(self):
        return "union"


cdef class LogicalWriter(Writer):
    """Converts a value of a logical type, then writes it by the writer of the base type. If ``convert(value)`` returns
    None, the value is not of the logical type: it is written without a conversion, such as a raw int or bytes, if
    ``check`` can read it; ``check`` raises ValueError or OverflowError for a value that readers refuse."""

    cdef Writer base
    cdef object convert
    cdef object check
    cdef str name

    def __init__(self, Writer base, convert, check, str name):
        self.base, self.convert, self.check, self.name = base, convert, check, name

    cdef int write(self, Out out, object value) except -1:
        converted = self.convert(value)
        if converted is None:
            if not self.base.score(value, SCORE_DEPTH):
                raise wrong(value, f"a {self.name}")
            try:
                self.check(value)
            except (ValueError, OverflowError) as error:
                raise Mismatch(f"must be a {self.name}, and {shown(value)} is none: {error}") from None
            converted = value
        return self.base.write(out, converted)

    cdef long score(self, object value, int depth) except -1:
        if self.convert(value) is not None:
            return 5
        return self.base.score(value, depth) and 1

    cdef str called(self):
        return self.name


cdef class Encoder:
    """Encodes values of one schema: ``prefix`` and the value's bytes."""

    cdef Writer root
    cdef bytes prefix
    cdef Out spare

    def __init__(self, Writer root not None, bytes prefix not None):
        self.root, self.prefix = root, prefix

    def encode(self, value):
        """Encode one value. Raises Mismatch."""
        cdef Out out = self.spare
        self.spare = None  # the value's own code may call this encoder again
        if out is None:
            out = Out()
        out.size = out.depth = 0
        out.raw(PyBytes_AS_STRING(self.prefix), PyBytes_GET_SIZE(self.prefix))
        try:
            self.root.write(out, value)
        except Mismatch as error:
            error.path = path_of(out.names, out.indexes, out.depth)
            raise
        except (TypeError, ValueError, AttributeError, OverflowError, ArithmeticError) as error:
            raise Mismatch(f"{type(error).__name__}: {error}", path_of(out.names, out.indexes, out.depth)) from error
        data = PyBytes_FromStringAndSize(<char*>out.data, out.size)
        if out.capacity <= 1 << 20:
            self.spare = out
        return data


# --- reading ----------------------------------------------------------------------------------------------------------


cdef class In:
    """The bytes of one message, and the path to the value that is being read."""

    cdef const unsigned char* data
    cdef Py_ssize_t at
    cdef Py_ssize_t end
    cdef Py_ssize_t items_left
    cdef int depth
    cdef PyObject* names[FRAMES]
    cdef Py_ssize_t indexes[FRAMES]

    cdef inline int64_t long_(self) except? -1:
        cdef uint64_t found = 0
        cdef int shift = 0
        cdef unsigned char byte
        while True:
            if self.at >= self.end:
                raise Damaged("the data ends within a number")
            byte = self.data[self.at]
            self.at += 1
            if shift == 63 and byte > 1:
                raise Damaged("a number is longer than 64 bits")
            found |= <uint64_t>(byte & 0x7F) << shift
            if byte < 0x80:
                return <int64_t>(found >> 1) ^ -<int64_t>(found & 1)
            shift += 7

    cdef inline const unsigned char* take(self, Py_ssize_t size) except NULL:
        cdef const unsigned char* found = self.data + self.at
        if size > self.end - self.at:
            raise Damaged(f"the data ends {size - (self.end - self.at)} bytes too early")
        self.at += size
        return found

    cdef inline Py_ssize_t length(self) except -1:
        cdef int64_t size = self.long_()
        if size < 0 or size > self.end - self.at:
            raise Damaged(f"a length of {size} bytes, but {self.end - self.at} are left")
        return size

    cdef inline int enter(self) except -1:
        self.depth += 1
        if self.depth >= FRAMES:
            self.depth -= 1
            raise Damaged(f"the value is nested more than {DEPTH_MAX} levels deep")
        self.names[self.depth] = NULL
        self.indexes[self.depth] = -1
        return 0

    cdef Py_ssize_t block(self) except -1:
        """The number of items in the next block of an array or map; 0 at the end."""
        cdef int64_t count = self.long_()
        if count < 0:
            if count == LONG_LEAST:
                raise Damaged("a block has an impossible number of items")
            count = -count
            if self.long_() < 0:
                raise Damaged("a block has a negative size")
        if count > self.items_left:
            raise Damaged(f"a block of {count} items in {self.end} bytes")
        self.items_left -= count
        return count


cdef class Reader:
    """Reads values of a type of the writer's schema, as a type of the reader's schema."""

    cdef object read(self, In source):
        raise NotImplementedError

    cdef int skip(self, In source) except -1:
        self.read(source)
        return 0


cdef class NullReader(Reader):
    cdef object read(self, In source):
        return None


cdef class BooleanReader(Reader):
    cdef object read(self, In source):
        cdef unsigned char byte = source.take(1)[0]
        if byte > 1:
            raise Damaged(f"a boolean has the byte {byte}")
        return byte == 1


cdef int64_t read_int(In source) except? -1:
    cdef int64_t found = source.long_()
    if found < INT_LEAST or found > INT_MOST:
        raise Damaged(f"an int has the value {found}")
    return found


cdef double read_double(In source) except? -1.0:
    cdef double value
    memcpy(&value, source.take(8), 8)
    return value


cdef double read_float(In source) except? -1.0:
    cdef float value
    memcpy(&value, source.take(4), 4)
    return value


cdef class IntReader(Reader):
    cdef object read(self, In source):
        return read_int(source)


cdef class LongReader(Reader):
    cdef object read(self, In source):
        return source.long_()

    cdef int skip(self, In source) except -1:
        source.long_()
        return 0


cdef class FloatReader(Reader):
    cdef object read(self, In source):
        return PyFloat_FromDouble(read_float(source))


cdef class DoubleReader(Reader):
    cdef object read(self, In source):
        return PyFloat_FromDouble(read_double(source))


cdef class IntAsReal(Reader):
    """Reads an int or long as the reader's float or double."""

    cdef bint single

    def __init__(self, bint single):
        self.single = single

    cdef object read(self, In source):
        cdef int64_t found = source.long_()
        return PyFloat_FromDouble(<float>found if self.single else <double>found)


cdef class BytesReader(Reader):
    cdef object read(self, In source):
        cdef Py_ssize_t size = source.length()
        cdef const unsigned char* data = source.data + source.at
        source.at += size
        return PyBytes_FromStringAndSize(<const char*>data, size)

    cdef int skip(self, In source) except -1:
        source.at += source.length()
        return 0


cdef class StringReader(Reader):
    cdef object read(self, In source):
        cdef Py_ssize_t size = source.length()
        cdef const unsigned char* data = source.data + source.at
        source.at += size
        return PyUnicode_DecodeUTF8(<const char*>data, size, NULL)

    cdef int skip(self, In source) except -1:
        source.at += source.length()
        return 0


cdef class FixedReader(Reader):
    cdef Py_ssize_t length

    def __init__(self, Py_ssize_t length):
        self.length = length

    cdef object read(self, In source):
        return PyBytes_FromStringAndSize(<const char*>source.take(self.length), self.length)


cdef class EnumReader(Reader):
    """``symbols``: for each position in the writer's enum, the symbol of the reader; None if the reader has neither the
    symbol nor a default. ``written``: the writer's symbols, for the error."""

    cdef tuple symbols
    cdef tuple written
    cdef str name

    def __init__(self, str name, symbols, written):
        self.name, self.symbols, self.written = name, tuple(symbols), tuple(written)

    cdef object read(self, In source):
        cdef int64_t at = source.long_()
        if at < 0 or at >= len(self.symbols):
            raise Damaged(f"enum {self.name} has no position {at}")
        found = self.symbols[<Py_ssize_t>at]
        if found is None:
            raise Unreadable(
                f"the symbol {self.written[<Py_ssize_t>at]} is unknown to the reader's enum {self.name}, which has no "
                "default"
            )
        return found


cdef class ArrayReader(Reader):
    cdef public Reader item

    cdef object read(self, In source):
        cdef Py_ssize_t left, index = 0
        found = []
        source.enter()
        while (left := source.block()):
            while left:
                source.indexes[source.depth] = index
                found.append(self.item.read(source))
                index += 1
                left -= 1
        source.depth -= 1
        return found

    cdef int skip(self, In source) except -1:
        cdef Py_ssize_t left
        source.enter()
        while (left := source.block()):
            while left:
                self.item.skip(source)
                left -= 1
        source.depth -= 1
        return 0


cdef class MapReader(Reader):
    cdef public Reader value

    cdef object read(self, In source):
        cdef Py_ssize_t left, size
        cdef Py_ssize_t index = 0
        found = {}
        source.enter()
        while (left := source.block()):
            while left:
                source.indexes[source.depth] = index
                size = source.length()
                key = PyUnicode_DecodeUTF8(<const char*>source.data + source.at, size, NULL)
                source.at += size
                found[key] = self.value.read(source)
                index += 1
                left -= 1
        source.depth -= 1
        return found

    cdef int skip(self, In source) except -1:
        cdef Py_ssize_t left
        source.enter()
        while (left := source.block()):
            while left:
                source.at += source.length()
                self.value.skip(source)
                left -= 1
        source.depth -= 1
        return 0


cdef class RecordReader(Reader):
    """``names``: for each field of the writer, the reader's name, or None for a field that the reader does not have.
    ``made``: {name: function} for the reader's fields that the writer's schema lacks: each call makes a default."""

    cdef tuple names
    cdef tuple readers
    cdef tuple made

    def fill(self, names, readers, made):
        self.names, self.readers, self.made = tuple(names), tuple(readers), tuple(made.items())

    cdef object read(self, In source):
        cdef Py_ssize_t at
        cdef object name
        found = {}
        source.enter()
        for at in range(len(self.names)):
            name = self.names[at]
            source.names[source.depth] = <PyObject*>name if name is not None else NULL
            if name is None:
                (<Reader>self.readers[at]).skip(source)
            else:
                found[name] = (<Reader>self.readers[at]).read(source)
        source.depth -= 1
        for name, make in self.made:
            found[name] = make()
        return found

    cdef int skip(self, In source) except -1:
        cdef Py_ssize_t at
        source.enter()
        for at in range(len(self.readers)):
            (<Reader>self.readers[at]).skip(source)
        source.depth -= 1
        return 0


cdef class UnionReader(Reader):
    cdef readonly tuple branches

    def fill(self, branches):
        self.branches = tuple(branches)

    cdef object read(self, In source):
        cdef int64_t at = source.long_()
        if at < 0 or at >= len(self.branches):
            raise Damaged(f"a union of {len(self.branches)} types has no branch {at}")
        return (<Reader>self.branches[<Py_ssize_t>at]).read(source)

    cdef int skip(self, In source) except -1:
        cdef int64_t at = source.long_()
        if at < 0 or at >= len(self.branches):
            raise Damaged(f"a union of {len(self.branches)} types has no branch {at}")
        return (<Reader>self.branches[<Py_ssize_t>at]).skip(source)


cdef class RefusingReader(Reader):
    """A branch of the writer's union that the reader's schema cannot read. Reading a value of this branch raises
    Unreadable."""

    cdef str reason

    def __init__(self, str reason):
        self.reason = reason

    cdef object read(self, In source):
        raise Unreadable(self.reason)


cdef class LogicalReader(Reader):
    cdef Reader base
    cdef object convert

    def __init__(self, Reader base, convert):
        self.base, self.convert = base, convert

    cdef object read(self, In source):
        return self.convert(self.base.read(source))

    cdef int skip(self, In source) except -1:
        return self.base.skip(source)


cdef class Decoder:
    """Decodes values of one writer's schema."""

    cdef Reader root

    def __init__(self, Reader root not None):
        self.root = root

    def decode(self, bytes data not None, Py_ssize_t start=0):
        """Decode the value that fills ``data`` from ``start`` on. Raises Damaged."""
        cdef In source = In()
        source.data = <const unsigned char*>PyBytes_AS_STRING(data)
        source.end = len(data)
        source.at = start
        source.depth = 0
        source.items_left = source.end + FREE_ITEMS
        if start < 0 or start > source.end:
            raise ValueError(f"start={start} in {source.end} bytes")
        try:
            value = self.root.read(source)
        except Damaged as error:
            error.path = path_of(source.names, source.indexes, source.depth)
            raise
        except (ValueError, OverflowError, ArithmeticError, TypeError) as error:
            raise Damaged(
                f"{type(error).__name__}: {error}", path_of(source.names, source.indexes, source.depth)
            ) from error
        if source.at != source.end:
            raise Damaged(f"{source.end - source.at} bytes are left after the value")
        return value


# --- logical types ----------------------------------------------------------------------------------------------------


def write_date(value):
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return value.toordinal() - _FIRST_DAY
    return None


def read_date(days):
    return datetime.date.fromordinal(days + _FIRST_DAY)


cdef object _micros_of_day(object value):
    return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond


def write_time_millis(value):
    return _micros_of_day(value) // 1000 if isinstance(value, datetime.time) else None


def write_time_micros(value):
    return _micros_of_day(value) if isinstance(value, datetime.time) else None


def read_time_millis(millis):
    return read_time_micros(millis * 1000)


def read_time_micros(micros):
    if not 0 <= micros < 86_400_000_000:
        raise ValueError(f"{micros} microseconds are no time of a day")
    seconds, rest = divmod(micros, 1_000_000)
    return datetime.time(seconds // 3600, seconds // 60 % 60, seconds % 60, rest)


def write_timestamp_millis(value):
    return _since_epoch(value) // 1000 if isinstance(value, datetime.datetime) else None


def write_timestamp_micros(value):
    return _since_epoch(value) if isinstance(value, datetime.datetime) else None


cdef object _since_epoch(object value):
    if value.tzinfo is None:
        raise Mismatch(f"must be a datetime with a time zone, {value} has none")
    micros = (value - _EPOCH) // _MICROSECOND
    if not _FIRST_MICROSECOND <= micros <= _LAST_MICROSECOND:  # (the zone's offset may lead to another year)
        raise Mismatch(f"must be a datetime in the years 1 to 9999 of UTC, {value} is in another year there")
    return micros


def read_timestamp_millis(millis):
    return _EPOCH + datetime.timedelta(milliseconds=millis)


def read_timestamp_micros(micros):
    return _EPOCH + datetime.timedelta(microseconds=micros)


def write_local_millis(value):
    return _since_local(value) // 1000 if isinstance(value, datetime.datetime) else None


def write_local_micros(value):
    return _since_local(value) if isinstance(value, datetime.datetime) else None


cdef object _since_local(object value):
    return (value.replace(tzinfo=None) - _LOCAL_EPOCH) // _MICROSECOND


def read_local_millis(millis):
    return _LOCAL_EPOCH + datetime.timedelta(milliseconds=millis)


def read_local_micros(micros):
    return _LOCAL_EPOCH + datetime.timedelta(microseconds=micros)


def write_uuid_text(value):
    return str(value) if isinstance(value, uuid.UUID) else None


def write_uuid_bytes(value):
    return value.bytes if isinstance(value, uuid.UUID) else None


def read_uuid_text(text):
    return uuid.UUID(text)


def read_uuid_bytes(data):
    return uuid.UUID(bytes=data)


cdef class DecimalBytes:
    """Converts decimals to bytes and back: the bytes are the unscaled number as big-endian two's complement.
    ``length``: the length of Avro's type fixed; 0 for Avro's type bytes."""

    cdef int precision
    cdef int scale
    cdef int length
    cdef object _context

    def __init__(self, int precision, int scale, int length=0):
        self.precision, self.scale, self.length = precision, scale, length
        self._context = decimal.Context(prec=decimal.MAX_PREC, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX)

    def write(self, value):
        if isinstance(value, bool) or not isinstance(value, (decimal.Decimal, int)):
            return None
        value = decimal.Decimal(value)
        sign, digits, exponent = value.as_tuple()
        if not isinstance(exponent, int):
            raise Mismatch(f"must be a finite decimal, not {value}")
        shift = exponent + self.scale
        # Remove trailing zeros: 1.500 fits the scale 1.
        while shift < 0 and digits and digits[-1] == 0:
            digits, shift = digits[:-1], shift + 1
        if shift < 0 and any(digits):
            raise Mismatch(f"must have at most {self.scale} digits after the point (scale), {value} has more")
        if len(digits) + shift > self.precision and any(digits):
            raise Mismatch(f"must have at most {self.precision} digits (precision), {value} has more")
        unscaled = int("".join(map(str, digits)) or "0") * 10 ** max(shift, 0) if any(digits) else 0
        if sign:
            unscaled = -unscaled
        size = self.length or (unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1
        return unscaled.to_bytes(size, "big", signed=True)

    def check(self, data):
        """Raise ValueError for bytes that are no number, or a number of too many digits."""
        if not len(data):
            raise ValueError("it has no bytes")
        if len(data) > DECIMAL_BYTES_MAX or abs(int.from_bytes(data, "big", signed=True)) >= 10 ** min(self.precision, 3 * DECIMAL_BYTES_MAX):
            raise ValueError(f"it has more than {self.precision} digits (precision)")

    def read(self, data):
        if not self.length and len(data) > DECIMAL_BYTES_MAX:
            raise ValueError(f"a decimal has {len(data)} bytes; the limit is {DECIMAL_BYTES_MAX}")
        unscaled = int.from_bytes(data, "big", signed=True)
        return decimal.Decimal(unscaled).scaleb(-self.scale, self._context)
