# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Avro's binary encoding to Arrow's buffers and back, without a Python object per value and without the GIL.

A *program* is a tree of nodes; ``arrow.py`` builds programs from schemas and turns buffers into Arrow arrays. This
module knows neither schemas nor pyarrow, and reads Arrow arrays through the Arrow C data interface.

    Decoding   columns, one tree for the reader's schema; nodes, one tree for each writer's schema. Executing a node
               reads one value from the bytes, and appends it to the node's column (or skips it: column -1).
    Encoding   nodes, one tree for the schema; each reads a value from its slot (an Arrow array) and appends bytes.

A node that cannot continue returns a fault. The callers of the node add their field or index to ``path``, so the path
costs nothing unless a fault occurs. A row with a fault becomes null: the columns are cut back to the row's start, and
``bad`` gets (row, fault, node, detail, path). The columns of a row may take at most ROW_BYTES plus ROW_FACTOR times the
size of the encoded row.
"""

from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.math cimport isinf
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

cdef enum:
    DEPTH = 128  # maximum nesting of records, arrays and maps in one value
    PATH = 132
    HEADER = 5  # size of the magic byte and the schema's id

cdef int64_t INT_LEAST = -2147483648
cdef int64_t INT_MOST = 2147483647
cdef int64_t LONG_MOST = 0x7FFFFFFFFFFFFFFF
cdef int64_t LONG_LEAST = -LONG_MOST - 1

#: The number of array and map items in a value may exceed the value's size in bytes by at most this number, because
#: items such as null need no byte.
cdef int64_t FREE_ITEMS = 100_000
#: The memory limit of one value in the columns: ROW_BYTES, plus ROW_FACTOR times the size of the encoded value.
cdef int64_t ROW_BYTES = 16 << 20
cdef int64_t ROW_FACTOR = 512


cpdef enum Fault:
    SOUND = 0
    ENDS
    NUMBER
    NO_BOOLEAN
    LENGTH
    INT_RANGE
    NO_TEXT
    BLOCK
    NESTED
    NO_SYMBOL
    UNKNOWN_SYMBOL
    NO_BRANCH
    REFUSED
    RANGE
    DIGITS
    LEFT_OVER
    TOO_LARGE
    SHORT
    MAGIC
    WRITER
    IS_NULL
    FIXED_SIZE
    NO_MEMBER
    NOT_EXACT
    NO_UUID
    # Faults that end the whole batch, not only one value:
    BATCH
    NO_MEMORY


cpdef enum Kind:
    """Kinds of columns."""

    NOTHING
    BITS
    FLAT  # values of ``width`` bytes
    TEXT  # int32 offsets, the first is 0, and bytes
    STRUCT
    LIST  # int32 offsets, the first is 0; a map is a list of structs
    DENSE  # union: int8 types and int32 offsets


cpdef enum Op:
    # decoding: skips
    SKIP_NULL
    SKIP_BOOLEAN
    SKIP_INT
    SKIP_LONG
    SKIP_BYTES
    SKIP_FIXED
    SKIP_ENUM
    # decoding: values
    READ_NULL
    READ_BOOLEAN
    READ_INT
    READ_LONG
    READ_SCALED
    READ_TIME
    READ_FLOAT
    READ_DOUBLE
    FLOAT_TO_DOUBLE
    LONG_TO_FLOAT
    LONG_TO_DOUBLE
    READ_TEXT
    READ_BYTES
    READ_FIXED
    READ_FIXED_BYTES
    READ_DECIMAL
    READ_FIXED_DECIMAL
    READ_ENUM
    READ_LIST
    READ_MAP
    READ_RECORD
    READ_UNION
    READ_MEMBER
    READ_DENSE
    READ_DEFAULT
    REFUSE
    # encoding
    WRITE_NOTHING
    WRITE_CONSTANT
    WRITE_BOOLEAN
    WRITE_INTEGER
    WRITE_REAL
    WRITE_INTEGER_AS_REAL
    WRITE_BYTES
    WRITE_TEXT
    WRITE_UUID
    WRITE_FIXED
    WRITE_FLAT
    WRITE_DECIMAL
    WRITE_RAW_DECIMAL
    WRITE_ENUM
    WRITE_LIST
    WRITE_MAP
    WRITE_RECORD
    WRITE_OPTIONAL
    WRITE_BRANCH
    WRITE_MEMBERS
    WRITE_DENSE


cdef struct Node:
    int op
    int column  # a column (decoding; -1: none) or a slot (encoding)
    int first  # index of the node's first child, in ``links``
    int count
    int text  # index of the node's first constant, in ``texts``
    int flag
    int64_t size
    int64_t factor


cdef struct Text:
    const uint8_t* data
    int64_t size


cdef struct Buffer:
    uint8_t* data
    int64_t size
    int64_t capacity
    int64_t hint  # size that the previous batch needed


cdef struct Column:
    int kind
    bint nullable
    int width
    int first
    int count
    int64_t weight  # bytes of a value in this column and all columns below it, without the bytes of text
    int64_t length
    Buffer validity
    Buffer values
    Buffer data


cdef struct In:
    const uint8_t* at
    const uint8_t* end
    int64_t items_left
    int64_t budget


cdef struct Failure:
    int node
    int64_t detail
    int steps
    int64_t path[PATH]  # frames from the inside out: a node and a child's position, or -1 and an index


cdef struct State:
    Node* nodes
    Column* columns
    int* links
    Text* texts
    int64_t bytes
    int64_t bytes_max
    Failure failure


cdef class Memory:
    """Memory from malloc that lives as long as this object; pyarrow keeps it as the base of a foreign buffer."""

    cdef uint8_t* _data
    cdef readonly Py_ssize_t size

    @property
    def address(self):
        return <size_t>self._data

    def __dealloc__(self):
        free(self._data)


cdef Memory owned(Buffer* buffer):
    """Move a buffer's memory to an object; the buffer is empty then."""
    cdef Memory memory = Memory.__new__(Memory)
    cdef void* cut
    buffer.hint = buffer.size
    memory._data = buffer.data
    memory.size = buffer.size
    if buffer.capacity > buffer.size:
        cut = realloc(buffer.data, max(buffer.size, 1))
        if cut is not NULL:
            memory._data = <uint8_t*>cut
    buffer.data = NULL
    buffer.size = buffer.capacity = 0
    return memory


cdef int grow(State* state, Buffer* buffer, int64_t more) noexcept nogil:
    cdef int64_t needed = buffer.size + more
    cdef int64_t wanted = max(needed, 2 * buffer.capacity, buffer.hint, 64)
    cdef void* grown
    if state.bytes + wanted - buffer.capacity > state.bytes_max:
        wanted = needed
        if state.bytes + wanted - buffer.capacity > state.bytes_max:
            return BATCH
    grown = realloc(buffer.data, wanted)
    if grown is NULL:
        return NO_MEMORY
    # Zero the new memory: the decoder sets bits of validity and of booleans, and never clears a bit.
    memset(<uint8_t*>grown + buffer.capacity, 0, wanted - buffer.capacity)
    state.bytes += wanted - buffer.capacity
    buffer.data = <uint8_t*>grown
    buffer.capacity = wanted
    return SOUND


cdef inline int room(State* state, Buffer* buffer, int64_t more) noexcept nogil:
    if buffer.size + more <= buffer.capacity:
        return SOUND
    return grow(state, buffer, more)


cdef inline int counted(State* state, Column* column) noexcept nogil:
    """Count an appended value that is not null."""
    cdef int64_t at = column.length
    cdef int fault
    if column.nullable:
        if (at >> 3) >= column.validity.capacity:
            column.validity.size = at >> 3
            fault = grow(state, &column.validity, 1)
            if fault:
                return fault
        column.validity.data[at >> 3] |= <uint8_t>(1 << (at & 7))
    column.length = at + 1
    return SOUND


cdef inline int put32(State* state, Column* column, int32_t value) noexcept nogil:
    cdef int fault = room(state, &column.values, 4)
    if fault:
        return fault
    (<int32_t*>(column.values.data + column.values.size))[0] = value
    column.values.size += 4
    return SOUND


cdef inline int put64(State* state, Column* column, int64_t value) noexcept nogil:
    cdef int fault = room(state, &column.values, 8)
    if fault:
        return fault
    (<int64_t*>(column.values.data + column.values.size))[0] = value
    column.values.size += 8
    return SOUND


cdef inline int put_text(State* state, Column* column, const uint8_t* data, int64_t size) noexcept nogil:
    """Append bytes, and the offset of their end."""
    cdef int fault
    if column.data.size + size > INT_MOST:
        return BATCH
    fault = room(state, &column.data, size)
    if fault:
        return fault
    if size:
        memcpy(column.data.data + column.data.size, data, size)
    column.data.size += size
    return put32(state, column, <int32_t>column.data.size)


cdef int put_null(State* state, Column* column) noexcept nogil:
    """Append a null. A column without nulls gets a filler value, because the record that contains the value is null."""
    cdef int fault = SOUND, at
    cdef Column* child
    if column.kind == FLAT:
        fault = room(state, &column.values, column.width)
        if fault:
            return fault
        memset(column.values.data + column.values.size, 0, column.width)
        column.values.size += column.width
    elif column.kind == TEXT:
        fault = put32(state, column, <int32_t>column.data.size)
    elif column.kind == LIST:
        fault = put32(state, column, <int32_t>state.columns[state.links[column.first]].length)
    elif column.kind == STRUCT:
        for at in range(column.count):
            fault = put_null(state, &state.columns[state.links[column.first + at]])
            if fault:
                return fault
    elif column.kind == DENSE:
        child = &state.columns[state.links[column.first]]
        fault = put_dense(state, column, 0, child.length)
        if not fault:
            fault = put_null(state, child)
    column.length += 1
    return fault


cdef int put_dense(State* state, Column* column, int branch, int64_t offset) noexcept nogil:
    cdef int fault = room(state, &column.data, 1)
    if fault:
        return fault
    column.data.data[column.data.size] = <uint8_t>branch
    column.data.size += 1
    return put32(state, column, <int32_t>offset)


cdef void clear_bits(Buffer* buffer, int64_t start, int64_t end) noexcept nogil:
    cdef int64_t first = start >> 3
    end = min(end, buffer.capacity << 3)
    if start >= end:
        return
    if start & 7:
        buffer.data[first] &= <uint8_t>((1 << (start & 7)) - 1)
        first += 1
    if ((end + 7) >> 3) > first:
        memset(buffer.data + first, 0, ((end + 7) >> 3) - first)


cdef void cut(State* state, Column* column, int64_t length) noexcept nogil:
    """Remove all values from position ``length`` on, in this column and in its child columns."""
    cdef int at
    cdef int64_t row, ends
    cdef Column* child
    if column.nullable:
        clear_bits(&column.validity, length, column.length + 1)
    if column.kind == BITS:
        clear_bits(&column.values, length, column.length + 1)
    elif column.kind == FLAT:
        column.values.size = length * column.width
    elif column.kind == TEXT:
        column.data.size = (<int32_t*>column.values.data)[length]
        column.values.size = (length + 1) * 4
    elif column.kind == LIST:
        ends = (<int32_t*>column.values.data)[length]
        column.values.size = (length + 1) * 4
        cut(state, &state.columns[state.links[column.first]], ends)
    elif column.kind == STRUCT:
        for at in range(column.count):
            cut(state, &state.columns[state.links[column.first + at]], length)
    elif column.kind == DENSE:
        for at in range(column.count):
            child = &state.columns[state.links[column.first + at]]
            ends = child.length
            # (visit only the removed rows, because a batch may have many bad rows)
            for row in range(length, column.data.size):
                if column.data.data[row] == at:
                    ends = (<int32_t*>column.values.data)[row]
                    break
            cut(state, child, ends)
        column.values.size = length * 4
        column.data.size = length
    column.length = length


# --- reading bytes ----------------------------------------------------------------------------------------------------


cdef inline int get_long(In* source, int64_t* found) noexcept nogil:
    cdef uint64_t total = 0
    cdef int shift = 0
    cdef uint8_t byte
    while True:
        if source.at >= source.end:
            return ENDS
        byte = source.at[0]
        source.at += 1
        if shift == 63 and byte > 1:
            return NUMBER
        total |= <uint64_t>(byte & 0x7F) << shift
        if byte < 0x80:
            found[0] = <int64_t>(total >> 1) ^ -<int64_t>(total & 1)
            return SOUND
        shift += 7


cdef inline int get_length(State* state, In* source, int64_t* size) noexcept nogil:
    cdef int fault = get_long(source, size)
    if fault:
        return fault
    if size[0] < 0 or size[0] > source.end - source.at:
        state.failure.detail = size[0]
        return LENGTH
    return SOUND


cdef inline int get_count(State* state, In* source, int64_t* count) noexcept nogil:
    """The number of items in the next block of an array or map; 0 at the end."""
    cdef int64_t size
    cdef int fault = get_long(source, count)
    if fault:
        return fault
    if count[0] < 0:
        state.failure.detail = count[0]
        if count[0] == LONG_LEAST:
            return BLOCK
        count[0] = -count[0]
        fault = get_long(source, &size)
        if fault:
            return fault
        if size < 0:
            return BLOCK
    if count[0] > source.items_left:
        state.failure.detail = count[0]
        return BLOCK
    source.items_left -= count[0]
    return SOUND


cdef bint is_text(const uint8_t* at, const uint8_t* end) noexcept nogil:
    """Whether the bytes are UTF-8 (RFC 3629: no surrogates, nothing overlong, nothing beyond U+10FFFF)."""
    cdef uint64_t word
    cdef uint8_t first
    cdef uint32_t point
    cdef int more, step
    while at < end:
        if end - at >= 8:
            memcpy(&word, at, 8)
            if not word & <uint64_t>0x8080808080808080:
                at += 8
                continue
        first = at[0]
        at += 1
        if first < 0x80:
            continue
        if 0xC2 <= first < 0xE0:
            more = 1
            point = first & 0x1F
        elif first & 0xF0 == 0xE0:
            more = 2
            point = first & 0x0F
        elif 0xF0 <= first < 0xF5:
            more = 3
            point = first & 0x07
        else:
            return False
        if end - at < more:
            return False
        for step in range(more):
            if at[step] & 0xC0 != 0x80:
                return False
            point = (point << 6) | (at[step] & 0x3F)
        if (more == 2 and (point < 0x800 or 0xD800 <= point < 0xE000)) or (
            more == 3 and (point < 0x10000 or point > 0x10FFFF)
        ):
            return False
        at += more
    return True


cdef bint is_uuid(const uint8_t* at, int64_t size) noexcept nogil:
    """Whether the text is a UUID: 32 hexadecimal digits, in groups of 8, 4, 4, 4 and 12 with hyphens between."""
    cdef int64_t place
    if size != 36:
        return False
    for place in range(36):
        if place == 8 or place == 13 or place == 18 or place == 23:
            if at[place] != c"-":
                return False
        elif not (c"0" <= at[place] <= c"9" or c"a" <= (at[place] | 0x20) <= c"f"):
            return False
    return True


cdef int compare(const uint8_t* left, const uint8_t* right, int width) noexcept nogil:
    """Compare little-endian two's complement numbers; return -1, 0 or 1."""
    cdef int at = width - 1
    if <int8_t>left[at] != <int8_t>right[at]:
        return -1 if <int8_t>left[at] < <int8_t>right[at] else 1
    while at:
        at -= 1
        if left[at] != right[at]:
            return -1 if left[at] < right[at] else 1
    return 0


cdef int put_decimal(State* state, Node* node, Column* column, const uint8_t* data, int64_t size) noexcept nogil:
    """Append a big-endian two's complement number. The node's two texts are the bounds (both exclusive)."""
    cdef int width = column.width, fault, at
    cdef uint8_t sign = 0xFF if size and data[0] & 0x80 else 0
    cdef uint8_t* out
    while size > width:
        if data[0] != sign:
            return DIGITS
        data += 1
        size -= 1
    if size and (data[0] ^ sign) & 0x80:
        return DIGITS
    fault = room(state, &column.values, width)
    if fault:
        return fault
    out = column.values.data + column.values.size
    for at in range(width):
        out[at] = data[size - 1 - at] if at < size else sign
    if compare(out, state.texts[node.text].data, width) <= 0 or compare(out, state.texts[node.text + 1].data, width) >= 0:
        return DIGITS
    column.values.size += width
    return counted(state, column)


cdef inline int stepped(State* state, int fault, int64_t node, int64_t at) noexcept nogil:
    """Add a field or an index to the path of a fault."""
    if state.failure.steps + 2 <= PATH:
        state.failure.path[state.failure.steps] = node
        state.failure.path[state.failure.steps + 1] = at
        state.failure.steps += 2
    return fault


cdef int read_items(State* state, int index, In* source, int depth) noexcept nogil:
    """Read an array or a map into a list, or skip it."""
    cdef Node* node = &state.nodes[index]
    cdef Column* items = NULL
    cdef Column* keys = NULL
    cdef Column* column = NULL
    cdef int64_t left, total = 0, size, weight = 1
    cdef int child = state.links[node.first], fault
    if node.column >= 0:
        column = &state.columns[node.column]
        items = &state.columns[state.links[column.first]]
        weight = items.weight + 1
        if node.op == READ_MAP:
            keys = &state.columns[state.links[items.first]]
    while True:
        fault = get_count(state, source, &left)
        if fault:
            return fault
        if not left:
            break
        while left:
            source.budget -= weight
            if source.budget < 0:
                return TOO_LARGE
            if node.op == READ_MAP:
                fault = get_length(state, source, &size)
                if fault:
                    return stepped(state, fault, -1, total)
                if keys is not NULL:
                    if not is_text(source.at, source.at + size):
                        return stepped(state, NO_TEXT, -1, total)
                    fault = put_text(state, keys, source.at, size)
                    if not fault:
                        fault = counted(state, keys)
                    if fault:
                        return fault
                source.at += size
            fault = read_node(state, child, source, depth)
            if fault:
                return stepped(state, fault, -1, total)
            if keys is not NULL:
                items.length += 1  # (the entries of a map)
            total += 1
            left -= 1
    if column is NULL:
        return SOUND
    if items.length > INT_MOST:
        return BATCH
    fault = put32(state, column, <int32_t>items.length)
    return fault if fault else counted(state, column)


cdef int read_record(State* state, int index, In* source, int depth) noexcept nogil:
    cdef Node* node = &state.nodes[index]
    cdef int at, fault
    for at in range(node.count):
        fault = read_node(state, state.links[node.first + at], source, depth)
        if fault:
            return stepped(state, fault, index, at)
    return counted(state, &state.columns[node.column]) if node.column >= 0 else SOUND


cdef int read_member(State* state, int index, In* source, int depth) noexcept nogil:
    """Read a union as a struct with a field for each branch: the value is in one of the fields, all others are null."""
    cdef Node* node = &state.nodes[index]
    cdef Column* column = &state.columns[node.column]
    cdef int at, fault
    for at in range(column.count):
        if at == node.size:
            fault = read_node(state, state.links[node.first], source, depth)
        else:
            fault = put_null(state, &state.columns[state.links[column.first + at]])
        if fault:
            return fault
    return counted(state, column)


cdef int read_default(State* state, int index, In* source, int depth) noexcept nogil:
    """Append a constant, as if the writer had written it."""
    cdef Node* node = &state.nodes[index]
    cdef Text text = state.texts[node.text]
    cdef In constant
    constant.at = text.data
    constant.end = text.data + text.size
    constant.items_left = text.size + FREE_ITEMS
    constant.budget = source.budget - text.size
    if constant.budget < 0:
        return TOO_LARGE
    cdef int fault = read_node(state, state.links[node.first], &constant, depth)
    source.budget = constant.budget
    return fault


cdef int read_node(State* state, int index, In* source, int depth) noexcept nogil:
    """Read one value. Returns a fault."""
    cdef Node* node = &state.nodes[index]
    cdef Column* column = &state.columns[node.column] if node.column >= 0 else NULL
    cdef int64_t number = 0
    cdef double real
    cdef float single
    cdef int fault
    cdef int op = node.op
    state.failure.node = index
    if op == READ_LONG:
        fault = get_long(source, &number)
        if not fault:
            fault = put64(state, column, number)
    elif op == READ_INT:
        fault = get_long(source, &number)
        if fault:
            return fault
        if number < INT_LEAST or number > INT_MOST:
            state.failure.detail = number
            return INT_RANGE
        fault = put32(state, column, <int32_t>number)
    elif op == READ_TEXT or op == READ_BYTES:
        fault = get_length(state, source, &number)
        if fault:
            return fault
        if op == READ_TEXT and not is_text(source.at, source.at + number):
            return NO_TEXT
        fault = put_text(state, column, source.at, number)
        source.at += number
    elif op == READ_DOUBLE:
        if source.end - source.at < 8:
            return ENDS
        memcpy(&number, source.at, 8)
        source.at += 8
        fault = put64(state, column, number)
    elif op == READ_RECORD:
        if depth + 1 >= DEPTH:
            return NESTED
        return read_record(state, index, source, depth + 1)
    elif op == READ_UNION:
        fault = get_long(source, &number)
        if fault:
            return fault
        if number < 0 or number >= node.count:
            state.failure.detail = number
            return NO_BRANCH
        return read_node(state, state.links[node.first + <int>number], source, depth)
    elif op == READ_NULL:
        return put_null(state, column)
    elif op == READ_SCALED or op == READ_TIME:
        fault = get_long(source, &number)
        if fault:
            return fault
        state.failure.detail = number
        if op == READ_TIME:
            if number < 0 or number >= node.size:
                return RANGE
        elif node.factor > 1 and (number > LONG_MOST // node.factor or number < LONG_LEAST // node.factor):
            return RANGE
        number *= node.factor
        fault = put32(state, column, <int32_t>number) if column.width == 4 else put64(state, column, number)
    elif op == READ_BOOLEAN:
        if source.at >= source.end:
            return ENDS
        if source.at[0] > 1:
            state.failure.detail = source.at[0]
            return NO_BOOLEAN
        number = column.length >> 3
        if number >= column.values.capacity:
            column.values.size = number
            fault = grow(state, &column.values, 1)
            if fault:
                return fault
        column.values.data[number] |= <uint8_t>(source.at[0] << (column.length & 7))
        source.at += 1
        fault = SOUND
    elif op == READ_ENUM:
        fault = get_long(source, &number)
        if fault:
            return fault
        state.failure.detail = number
        if number < 0 or number >= node.count:
            return NO_SYMBOL
        number += node.text
        if state.texts[number].size < 0:
            return UNKNOWN_SYMBOL
        source.budget -= state.texts[number].size
        if source.budget < 0:
            return TOO_LARGE
        fault = put_text(state, column, state.texts[number].data, state.texts[number].size)
    elif op == READ_FLOAT:
        if source.end - source.at < 4:
            return ENDS
        memcpy(&number, source.at, 4)
        source.at += 4
        fault = put32(state, column, <int32_t>number)
    elif op == FLOAT_TO_DOUBLE:
        if source.end - source.at < 4:
            return ENDS
        memcpy(&single, source.at, 4)
        source.at += 4
        real = single
        memcpy(&number, &real, 8)
        fault = put64(state, column, number)
    elif op == LONG_TO_DOUBLE or op == LONG_TO_FLOAT:
        fault = get_long(source, &number)
        if fault:
            return fault
        if op == LONG_TO_DOUBLE:
            real = <double>number
            memcpy(&number, &real, 8)
            fault = put64(state, column, number)
        else:
            single = <float>number
            memcpy(&number, &single, 4)
            fault = put32(state, column, <int32_t>number)
    elif op == READ_FIXED or op == READ_FIXED_BYTES:
        if source.end - source.at < node.size:
            return ENDS
        if op == READ_FIXED:
            fault = room(state, &column.values, node.size)
            if fault:
                return fault
            memcpy(column.values.data + column.values.size, source.at, node.size)
            column.values.size += node.size
        else:
            fault = put_text(state, column, source.at, node.size)
        source.at += node.size
    elif op == READ_DECIMAL or op == READ_FIXED_DECIMAL:
        number = node.size
        if op == READ_DECIMAL:
            fault = get_length(state, source, &number)
            if fault:
                return fault
        elif source.end - source.at < number:
            return ENDS
        source.at += number
        return put_decimal(state, node, column, source.at - number, number)
    elif op == READ_LIST or op == READ_MAP:
        if depth + 1 >= DEPTH:
            return NESTED
        return read_items(state, index, source, depth + 1)
    elif op == READ_MEMBER:
        return read_member(state, index, source, depth)
    elif op == READ_DENSE:
        fault = put_dense(
            state, column, <int>node.size, state.columns[state.links[column.first + <int>node.size]].length
        )
        if not fault:
            column.length += 1
            fault = read_node(state, state.links[node.first], source, depth)
        return fault
    elif op == READ_DEFAULT:
        return read_default(state, index, source, depth)
    elif op == REFUSE:
        return REFUSED
    else:
        return skip(state, index, source)
    return fault if fault else counted(state, column)


cdef int skip(State* state, int index, In* source) noexcept nogil:
    cdef Node* node = &state.nodes[index]
    cdef int64_t number = 0
    cdef int fault = SOUND
    if node.op == SKIP_NULL:
        return SOUND
    if node.op == SKIP_LONG or node.op == SKIP_INT or node.op == SKIP_ENUM:
        fault = get_long(source, &number)
        state.failure.detail = number
        if node.op == SKIP_INT and not fault and (number < INT_LEAST or number > INT_MOST):
            return INT_RANGE
        if node.op == SKIP_ENUM and not fault and (number < 0 or number >= node.count):
            return NO_SYMBOL
        return fault
    if node.op == SKIP_BYTES:
        fault = get_length(state, source, &number)
        if not fault:
            source.at += number
        return fault
    number = node.size if node.op == SKIP_FIXED else 1
    if source.end - source.at < number:
        return ENDS
    if node.op == SKIP_BOOLEAN and source.at[0] > 1:
        state.failure.detail = source.at[0]
        return NO_BOOLEAN
    source.at += number
    return SOUND


# --- programs ---------------------------------------------------------------------------------------------------------


cdef struct ArrowArray:
    int64_t length
    int64_t null_count
    int64_t offset
    int64_t n_buffers
    int64_t n_children
    const void** buffers
    ArrowArray** children
    ArrowArray* dictionary
    void (*release)(ArrowArray*) noexcept
    void* private_data


cdef inline bint is_null(const ArrowArray* array, int64_t at) noexcept nogil:
    """Whether a value of an array is null. ``at`` is the index of the value, counted from the start of the buffers."""
    cdef const uint8_t* validity = <const uint8_t*>array.buffers[0]
    return validity is not NULL and not (validity[at >> 3] >> (at & 7)) & 1


cdef class Program:
    """A program: its nodes, the links between the nodes, and constants."""

    cdef State state
    cdef int nodes
    cdef int links
    cdef int texts
    cdef list kept  # the constants' bytes objects

    def __cinit__(self):
        self.kept = []

    def __dealloc__(self):
        free(self.state.nodes)
        free(self.state.links)
        free(self.state.texts)

    @property
    def size(self):
        """The number of nodes."""
        return self.nodes

    def node(self, int op, int column=-1, int64_t size=0, int64_t factor=1, constants=(), int flag=0):
        """Add a node; return its index. The constant None is stored with the size -1."""
        cdef Node* nodes = <Node*>resized(self.state.nodes, self.nodes, sizeof(Node))
        self.state.nodes = nodes
        nodes[self.nodes].op = op
        nodes[self.nodes].column = column
        nodes[self.nodes].size = size
        nodes[self.nodes].factor = factor
        nodes[self.nodes].flag = flag
        nodes[self.nodes].first = 0
        nodes[self.nodes].count = len(constants)
        nodes[self.nodes].text = self.texts
        for each in constants:
            self.constant(each)
        self.nodes += 1
        return self.nodes - 1

    cdef int constant(self, bytes data) except -1:
        self.state.texts = <Text*>resized(self.state.texts, self.texts, sizeof(Text))
        self.kept.append(data)
        self.state.texts[self.texts].data = NULL if data is None else <uint8_t*>PyBytes_AS_STRING(data)
        self.state.texts[self.texts].size = -1 if data is None else PyBytes_GET_SIZE(data)
        self.texts += 1
        return 0

    cdef int linked(self, children) except -1:
        cdef int first = self.links, each
        for each in children:
            self.state.links = <int*>resized(self.state.links, self.links, sizeof(int))
            self.state.links[self.links] = each
            self.links += 1
        return first

    def link(self, int node, children):
        """Set the children of a node."""
        if not 0 <= node < self.nodes:
            raise IndexError(node)
        self.state.nodes[node].first = self.linked(children)
        self.state.nodes[node].count = len(children)


cdef void* resized(void* data, int count, size_t width) except? NULL:
    """Grow an array so that it can take one more item: its capacity is always a power of two."""
    cdef void* grown = data
    if count & (count - 1) == 0:
        grown = realloc(data, max(2 * count, 1) * width)
        if grown is NULL:
            raise MemoryError
    return grown


cdef tuple frames(Failure* failure):
    return tuple([failure.path[at] for at in range(failure.steps)])


cdef class Decoding(Program):
    """Decodes framed values to the columns of one reader's schema."""

    cdef int columns

    def __dealloc__(self):
        cdef int at
        for at in range(self.columns):
            free(self.state.columns[at].validity.data)
            free(self.state.columns[at].values.data)
            free(self.state.columns[at].data.data)
        free(self.state.columns)

    def column(self, int kind, bint nullable, int width=0, children=()):
        """Add a column; return its index. The column's children must have been added before."""
        cdef Column* made
        cdef int each
        cdef int64_t weight = width + (4 if kind in (TEXT, LIST, DENSE) else 1)
        for each in children:
            weight += self.state.columns[each].weight
        self.state.columns = <Column*>resized(self.state.columns, self.columns, sizeof(Column))
        made = &self.state.columns[self.columns]
        memset(made, 0, sizeof(Column))
        made.kind, made.nullable, made.width, made.weight = kind, nullable, width, weight
        made.first = self.linked(children)
        made.count = len(children)
        self.columns += 1
        return self.columns - 1

    def decode(self, capsule, bint wide, bint framed, dict writers, int root, int64_t bytes_max):
        """Decode all values of a binary array. ``capsule``: the array (``arrow_array``); ``wide``: it has offsets of 64
        bits. ``framed``: each value begins with a magic byte and a schema id. ``writers`` maps each schema id to a node
        (-1: the id is unusable); without frames, ``writers`` has the node as {0: node}. ``root``: the column of the
        values.

        Returns (bad rows, fault of the whole batch, row of that fault). Afterwards call ``take`` for each column, or
        call ``reset``.
        """
        cdef ArrowArray* array = <ArrowArray*>PyCapsule_GetPointer(capsule, "arrow_array")
        cdef int count = len(writers), node = -1, fault = SOUND
        cdef int64_t row = 0, start, end, at, known = -1, found
        cdef int64_t* ids = <int64_t*>malloc(max(count, 1) * sizeof(int64_t))
        cdef int* nodes = <int*>malloc(max(count, 1) * sizeof(int))
        cdef const uint8_t* data
        cdef In source
        cdef Column* column = &self.state.columns[root]
        cdef State* state = &self.state
        cdef list bad = []
        if ids is NULL or nodes is NULL:
            free(ids)
            free(nodes)
            raise MemoryError
        for at, key in enumerate(sorted(writers)):
            ids[at] = key
            nodes[at] = writers[key]
        state.bytes, state.bytes_max = 0, bytes_max
        for at in range(self.columns):
            if state.columns[at].kind == TEXT or state.columns[at].kind == LIST:
                fault = put32(state, &state.columns[at], 0)
                if fault:
                    free(ids)
                    free(nodes)
                    return bad, fault, 0
        data = <const uint8_t*>array.buffers[2]
        try:
            with nogil:
                for row in range(array.length):
                    at = array.offset + row
                    if is_null(array, at):
                        fault = put_null(state, column)
                        if fault:
                            break
                        continue
                    if wide:
                        start, end = (<int64_t*>array.buffers[1])[at], (<int64_t*>array.buffers[1])[at + 1]
                    else:
                        start, end = (<int32_t*>array.buffers[1])[at], (<int32_t*>array.buffers[1])[at + 1]
                    state.failure.steps = 0
                    state.failure.node = -1
                    source.at = data + start
                    source.end = data + end
                    source.items_left = end - start + FREE_ITEMS
                    source.budget = ROW_BYTES + ROW_FACTOR * (end - start)
                    found = 0
                    fault = SOUND
                    if framed:
                        if end - start < HEADER:
                            fault = SHORT
                            state.failure.detail = end - start
                        elif source.at[0]:
                            fault = MAGIC
                            state.failure.detail = source.at[0]
                        else:
                            found = id_at(source.at)
                            source.at += HEADER
                    if not fault:
                        if found != known:
                            node = looked_up(found, ids, nodes, count)
                            known = found
                        if node < 0:
                            fault = WRITER
                            state.failure.detail = found
                        else:
                            fault = read_node(state, node, &source, 0)
                            if not fault and source.at != source.end:
                                state.failure.detail = source.end - source.at
                                state.failure.node = -1
                                fault = LEFT_OVER
                    if fault:
                        if fault >= BATCH:
                            break
                        with gil:
                            bad.append((row, fault, state.failure.node, state.failure.detail, frames(&state.failure)))
                        cut(state, column, row)
                        fault = put_null(state, column)
                        if fault:
                            break
        finally:
            free(ids)
            free(nodes)
        return bad, fault, row

    def take(self, int at):
        """Move a column's buffers out: (length, nulls, validity, values, data); a buffer is a Memory or None."""
        cdef Column* column = &self.state.columns[at]
        cdef int64_t length = column.length, nulls = 0
        cdef Memory validity = None
        cdef int fault = SOUND
        self.state.bytes_max = LONG_MOST
        if column.nullable:
            nulls = length - ones(&column.validity, length)
            if nulls:
                fault = sized(&self.state, &column.validity, length)
                validity = owned(&column.validity) if not fault else None
            else:
                clear_bits(&column.validity, 0, length)
        if not fault and column.kind == BITS:
            fault = sized(&self.state, &column.values, length)
        if fault:
            raise MemoryError
        values = owned(&column.values) if column.values.data is not NULL else None
        data = owned(&column.data) if column.data.data is not NULL else None
        column.length = 0
        return length, nulls, validity, values, data

    def reset(self):
        """Drop the values of all columns, and their memory."""
        cdef int at
        for at in range(self.columns):
            dropped(&self.state.columns[at].validity)
            dropped(&self.state.columns[at].values)
            dropped(&self.state.columns[at].data)
            self.state.columns[at].length = 0


cdef void dropped(Buffer* buffer) noexcept:
    free(buffer.data)
    buffer.data = NULL
    buffer.size = buffer.capacity = buffer.hint = 0


cdef int sized(State* state, Buffer* bits, int64_t length) noexcept:
    """Set the size in bytes of a buffer with ``length`` bits."""
    cdef int fault = SOUND
    cdef int64_t wanted = (length + 7) >> 3
    bits.size = 0
    if wanted > bits.capacity:
        fault = grow(state, bits, wanted)
    bits.size = wanted
    return fault


cdef int64_t ones(const Buffer* bits, int64_t length) noexcept:
    cdef int64_t total = 0, at
    cdef uint8_t byte
    for at in range(min((length + 7) >> 3, bits.capacity)):
        byte = bits.data[at]
        while byte:
            byte &= byte - 1
            total += 1
    return total


cdef inline int64_t id_at(const uint8_t* data) noexcept nogil:
    return (<int64_t>data[1] << 24) | (<int64_t>data[2] << 16) | (<int64_t>data[3] << 8) | data[4]


cdef int looked_up(int64_t wanted, const int64_t* ids, const int* nodes, int count) noexcept nogil:
    cdef int low = 0, high = count, middle
    while low < high:
        middle = (low + high) // 2
        if ids[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return nodes[low] if low < count and ids[low] == wanted else -1


def schema_ids(capsule, bint wide):
    """The different schema ids of the framed values in a binary array. A value without a frame has no schema id."""
    cdef ArrowArray* array = <ArrowArray*>PyCapsule_GetPointer(capsule, "arrow_array")
    cdef int64_t row, at, start, end, known = -1, found
    cdef const uint8_t* data = <const uint8_t*>array.buffers[2]
    cdef set ids = set()
    for row in range(array.length):
        at = array.offset + row
        if is_null(array, at):
            continue
        if wide:
            start, end = (<int64_t*>array.buffers[1])[at], (<int64_t*>array.buffers[1])[at + 1]
        else:
            start, end = (<int32_t*>array.buffers[1])[at], (<int32_t*>array.buffers[1])[at + 1]
        if end - start < HEADER or data[start]:
            continue
        found = id_at(data + start)
        if found != known:
            known = found
            ids.add(found)
    return ids


# --- writing bytes ----------------------------------------------------------------------------------------------------


cdef struct Out:
    State* state
    ArrowArray** arrays
    Buffer data


cdef inline int emit(Out* out, const void* source, int64_t size) noexcept nogil:
    cdef int fault = room(out.state, &out.data, size)
    if fault:
        return fault
    if size:
        memcpy(out.data.data + out.data.size, source, size)
    out.data.size += size
    return SOUND


cdef inline int emit_long(Out* out, int64_t value) noexcept nogil:
    cdef uint64_t left = (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)
    cdef int fault = room(out.state, &out.data, 10)
    if fault:
        return fault
    while left >= 0x80:
        out.data.data[out.data.size] = <uint8_t>(left & 0x7F) | 0x80
        out.data.size += 1
        left >>= 7
    out.data.data[out.data.size] = <uint8_t>left
    out.data.size += 1
    return SOUND


cdef inline int load(State* state, Node* node, const ArrowArray* array, int64_t at, int64_t* found) noexcept nogil:
    """Load an integer. The node's ``flag`` is the width of the integer in bits (8, 16, 32 or 64), negative for an
    unsigned integer."""
    cdef const void* values = array.buffers[1]
    cdef uint64_t large
    if node.flag == 64:
        found[0] = (<const int64_t*>values)[at]
    elif node.flag == 32:
        found[0] = (<const int32_t*>values)[at]
    elif node.flag == 16:
        found[0] = (<const int16_t*>values)[at]
    elif node.flag == 8:
        found[0] = (<const int8_t*>values)[at]
    elif node.flag == -32:
        found[0] = (<const uint32_t*>values)[at]
    elif node.flag == -16:
        found[0] = (<const uint16_t*>values)[at]
    elif node.flag == -8:
        found[0] = (<const uint8_t*>values)[at]
    else:
        large = (<const uint64_t*>values)[at]
        found[0] = <int64_t>large
        if large > <uint64_t>LONG_MOST:
            state.failure.detail = LONG_MOST
            return RANGE
    return SOUND


cdef inline void span(const ArrowArray* array, int64_t at, int64_t size, int64_t* start, int64_t* end) noexcept nogil:
    """Load the offsets of a text or list; ``size``: the bytes of an offset, 4 or 8."""
    if size == 4:
        start[0] = (<const int32_t*>array.buffers[1])[at]
        end[0] = (<const int32_t*>array.buffers[1])[at + 1]
    else:
        start[0] = (<const int64_t*>array.buffers[1])[at]
        end[0] = (<const int64_t*>array.buffers[1])[at + 1]


cdef int emit_integer(Out* out, Node* node, const ArrowArray* array, int64_t at) noexcept nogil:
    """Write an integer. A positive ``factor`` multiplies the integer; a negative one divides it by the absolute value
    of ``factor``. ``size``: 4 for Avro's int, another value for Avro's long. The node's two texts are the least and the
    greatest number that readers of the logical type can read; other integers have no texts."""
    cdef int64_t number, rest, least, most
    cdef int fault = load(out.state, node, array, at, &number)
    if fault:
        return fault
    out.state.failure.detail = number
    if node.factor > 1:
        if number > LONG_MOST // node.factor or number < LONG_LEAST // node.factor:
            return RANGE
        number *= node.factor
    elif node.factor < 0:
        rest = number % -node.factor
        number = number // -node.factor - (1 if rest < 0 else 0)
    if node.size == 4 and (number < INT_LEAST or number > INT_MOST):
        return INT_RANGE
    if node.count:
        memcpy(&least, out.state.texts[node.text].data, 8)
        memcpy(&most, out.state.texts[node.text + 1].data, 8)
        if number < least or number > most:
            return RANGE
    return emit_long(out, number)


cdef int emit_real(Out* out, Node* node, const ArrowArray* array, int64_t at) noexcept nogil:
    """Write a float or a double. ``flag``: the width of the array's values in bits: for an integer as in ``load``, for
    WRITE_REAL 32 or 64. ``size``: the number of bytes of the Avro type."""
    cdef int64_t number
    cdef double real
    cdef float single
    cdef int fault
    if node.op == WRITE_INTEGER_AS_REAL:
        fault = load(out.state, node, array, at, &number)
        if fault:
            return fault
        real = <double>number
        out.state.failure.detail = number
        # (2^63 as a double is beyond the range of the cast back)
        if (node.size == 4 and <double><float>real != real) or real >= 9223372036854775808.0 or <int64_t>real != number:
            return NOT_EXACT
    elif node.flag == 64:
        real = (<const double*>array.buffers[1])[at]
    else:
        real = (<const float*>array.buffers[1])[at]
    if node.size == 8:
        return emit(out, &real, 8)
    single = <float>real
    if isinf(single) and not isinf(real):
        return RANGE
    return emit(out, &single, 4)


cdef int emit_decimal(Out* out, Node* node, const ArrowArray* array, int64_t at) noexcept nogil:
    """Write a decimal of ``flag`` bytes as big-endian two's complement. With ``size`` above 0, the number takes
    ``size`` bytes. With ``size`` 0, the number takes as few bytes as possible, and the count of these bytes precedes
    the number. The node's two texts are the bounds (both exclusive) of the number."""
    cdef int width = node.flag, used, place, fault
    cdef const uint8_t* data = <const uint8_t*>array.buffers[1] + at * width
    cdef uint8_t sign = 0xFF if data[width - 1] & 0x80 else 0
    if compare(data, out.state.texts[node.text].data, width) <= 0:
        return DIGITS
    if compare(data, out.state.texts[node.text + 1].data, width) >= 0:
        return DIGITS
    used = width
    while used > 1 and data[used - 1] == sign and not (data[used - 2] ^ sign) & 0x80:
        used -= 1
    if node.size:
        if used > node.size:
            return DIGITS
    else:
        fault = emit_long(out, used)
        if fault:
            return fault
    fault = room(out.state, &out.data, max(node.size, used))
    if fault:
        return fault
    for place in range(<int>node.size - used):
        out.data.data[out.data.size] = sign
        out.data.size += 1
    for place in range(used):
        out.data.data[out.data.size] = data[used - 1 - place]
        out.data.size += 1
    return SOUND


cdef int emit_raw_decimal(Out* out, Node* node, const ArrowArray* array, int64_t at) noexcept nogil:
    """Write the bytes of a number as they are: big-endian two's complement, of ``factor`` bytes each if ``flag`` is 0.
    ``size``: the bytes of Avro's fixed, 0 for Avro's bytes. The texts are the bounds (both exclusive) in 32 bytes."""
    cdef int64_t start = at * node.factor, end = start + node.factor, size, place
    cdef const uint8_t* data = <const uint8_t*>array.buffers[1]
    cdef uint8_t number[32]
    cdef uint8_t sign
    cdef int fault
    if node.flag:
        span(array, at, node.flag, &start, &end)
        data = <const uint8_t*>array.buffers[2]
    data += start
    size = end - start
    if not size or (node.size and size != node.size):
        out.state.failure.detail = size
        return FIXED_SIZE
    sign = 0xFF if data[0] & 0x80 else 0
    memset(number, sign, 32)
    for place in range(size):
        if place < 32:
            number[place] = data[size - 1 - place]
        elif data[size - 1 - place] != sign:
            return DIGITS
    if (number[31] ^ sign) & 0x80:
        return DIGITS
    if compare(number, out.state.texts[node.text].data, 32) <= 0:
        return DIGITS
    if compare(number, out.state.texts[node.text + 1].data, 32) >= 0:
        return DIGITS
    if not node.size:
        fault = emit_long(out, size)
        if fault:
            return fault
    return emit(out, data, size)


cdef int emit_symbol(Out* out, Node* node, const ArrowArray* array, int64_t at) noexcept nogil:
    cdef int64_t start, end
    cdef int symbol
    cdef const uint8_t* data
    cdef Text* text
    span(array, at, node.flag, &start, &end)
    data = <const uint8_t*>array.buffers[2] + start
    for symbol in range(node.count):
        text = &out.state.texts[node.text + symbol]
        if text.size == end - start and (not text.size or memcmp(text.data, data, text.size) == 0):
            return emit_long(out, symbol)
    return NO_SYMBOL


cdef int emit_items(Out* out, int index, const ArrowArray* array, int64_t at, int depth) noexcept nogil:
    """Write a list as an array or a map, in one block."""
    cdef Node* node = &out.state.nodes[index]
    cdef int64_t start, end, item, entry
    cdef int fault, child
    cdef int key = -1
    span(array, at, node.flag, &start, &end)
    if start == end:
        return emit_long(out, 0)
    fault = emit_long(out, end - start)
    if fault:
        return fault
    child = out.state.links[node.first]
    if node.op == WRITE_MAP:
        key = child
        child = out.state.links[node.first + 1]
    for item in range(start, end):
        entry = item
        if key >= 0:
            entry += array.children[0].offset
            fault = write_node(out, key, entry, depth)
        if not fault:
            fault = write_node(out, child, entry, depth)
        if fault:
            return stepped(out.state, fault, -1, item - start)
    return emit_long(out, 0)


cdef int emit_record(Out* out, int index, int64_t at, int depth) noexcept nogil:
    cdef Node* node = &out.state.nodes[index]
    cdef int field, fault
    for field in range(node.count):
        fault = write_node(out, out.state.links[node.first + field], at, depth)
        if fault:
            return stepped(out.state, fault, index, field)
    return SOUND


cdef int emit_member(Out* out, int index, const ArrowArray* array, int64_t at, int depth) noexcept nogil:
    """Write a struct with one field for each branch as a union: the branch is the field that is not null. ``factor``:
    the index of the null branch; -1: the union has no null branch."""
    cdef Node* node = &out.state.nodes[index]
    cdef int field, found = -1
    cdef const ArrowArray* child
    if not is_null(array, at):
        for field in range(node.count):
            child = array.children[field]
            if child.n_buffers and not is_null(child, child.offset + at):
                if found >= 0:
                    return NO_MEMBER
                found = field
    if found >= 0:
        return write_node(out, out.state.links[node.first + found], at, depth)
    if node.factor < 0:
        return NO_MEMBER
    return emit_long(out, node.factor)


cdef int write_node(Out* out, int index, int64_t row, int depth) noexcept nogil:
    """Write one value: ``row`` of the node's array. Returns a fault."""
    cdef Node* node = &out.state.nodes[index]
    cdef int op = node.op, fault
    cdef const ArrowArray* array
    cdef int64_t at, start, end
    cdef uint8_t byte
    out.state.failure.node = index
    if op == WRITE_CONSTANT:
        return emit(out, out.state.texts[node.text].data, out.state.texts[node.text].size)
    if op == WRITE_NOTHING:
        return SOUND
    if op == WRITE_BRANCH:
        fault = emit(out, out.state.texts[node.text].data, out.state.texts[node.text].size)
        return fault if fault else write_node(out, out.state.links[node.first], row, depth)
    array = out.arrays[node.column]
    at = array.offset + row
    if op == WRITE_OPTIONAL:
        if is_null(array, at):
            return emit_long(out, node.size)
        fault = emit_long(out, node.factor)
        return fault if fault else write_node(out, out.state.links[node.first], row, depth)
    if op == WRITE_DENSE:
        byte = (<const uint8_t*>array.buffers[0])[at]
        if byte >= node.count:
            return NO_MEMBER
        return write_node(
            out, out.state.links[node.first + byte], (<const int32_t*>array.buffers[1])[at], depth
        )
    if op == WRITE_MEMBERS:
        return emit_member(out, index, array, at, depth)
    if is_null(array, at):
        return IS_NULL
    if op == WRITE_INTEGER:
        return emit_integer(out, node, array, at)
    if op == WRITE_BYTES or op == WRITE_TEXT or op == WRITE_UUID or op == WRITE_FIXED:
        span(array, at, node.flag, &start, &end)
        if op == WRITE_TEXT:
            if not is_text(<const uint8_t*>array.buffers[2] + start, <const uint8_t*>array.buffers[2] + end):
                return NO_TEXT
        elif op == WRITE_UUID and not is_uuid(<const uint8_t*>array.buffers[2] + start, end - start):
            return NO_UUID
        if op == WRITE_FIXED:
            if end - start != node.size:
                out.state.failure.detail = end - start
                return FIXED_SIZE
        else:
            fault = emit_long(out, end - start)
            if fault:
                return fault
        return emit(out, <const uint8_t*>array.buffers[2] + start, end - start)
    if op == WRITE_REAL or op == WRITE_INTEGER_AS_REAL:
        return emit_real(out, node, array, at)
    if op == WRITE_RECORD:
        if depth + 1 >= DEPTH:
            return NESTED
        return emit_record(out, index, at, depth + 1)
    if op == WRITE_BOOLEAN:
        byte = ((<const uint8_t*>array.buffers[1])[at >> 3] >> (at & 7)) & 1
        return emit(out, &byte, 1)
    if op == WRITE_ENUM:
        return emit_symbol(out, node, array, at)
    if op == WRITE_FLAT:
        if node.flag:  # bytes, not fixed
            fault = emit_long(out, node.size)
            if fault:
                return fault
        return emit(out, <const uint8_t*>array.buffers[1] + at * node.size, node.size)
    if op == WRITE_DECIMAL:
        return emit_decimal(out, node, array, at)
    if op == WRITE_RAW_DECIMAL:
        return emit_raw_decimal(out, node, array, at)
    # WRITE_LIST, WRITE_MAP
    if depth + 1 >= DEPTH:
        return NESTED
    return emit_items(out, index, array, at, depth + 1)


cdef class Encoding(Program):
    """Encodes the values of an Arrow array. ``slots``: for each slot except the first, its parent slot and its position
    among the parent's children. The first slot is the array itself."""

    cdef list slots
    cdef int64_t hint

    def __init__(self):
        self.slots = []

    def slot(self, int parent, int child):
        """Add a slot; return its index."""
        self.slots.append((parent, child))
        return len(self.slots)

    def encode(self, capsule, bytes prefix not None, int root, bint has_validity, int64_t bytes_max):
        """Encode all values, each after ``prefix``; a null gives null. Returns (validity, offsets, data, nulls, bad
        rows, fault of the whole batch, row of that fault); validity is None without nulls."""
        cdef ArrowArray* array = <ArrowArray*>PyCapsule_GetPointer(capsule, "arrow_array")
        cdef int count = len(self.slots) + 1, fault = SOUND, parent, child
        cdef int64_t row = 0, start, nulls = 0
        cdef const char* begin = PyBytes_AS_STRING(prefix)
        cdef int64_t begin_size = PyBytes_GET_SIZE(prefix)
        cdef Out out
        cdef Buffer offsets, validity
        cdef list bad = []
        memset(&offsets, 0, sizeof(Buffer))
        memset(&validity, 0, sizeof(Buffer))
        memset(&out, 0, sizeof(Out))
        out.state = &self.state
        out.data.hint = self.hint
        self.state.bytes, self.state.bytes_max = 0, bytes_max
        out.arrays = <ArrowArray**>malloc(count * sizeof(ArrowArray*))
        offsets.data = <uint8_t*>malloc((array.length + 1) * 4)
        offsets.size = offsets.capacity = (array.length + 1) * 4
        validity.data = <uint8_t*>calloc(array.length // 8 + 1, 1)
        validity.size = validity.capacity = array.length // 8 + 1
        try:
            if out.arrays is NULL or offsets.data is NULL or validity.data is NULL:
                raise MemoryError
            out.arrays[0] = array
            for row, (parent, child) in enumerate(self.slots):
                if child >= out.arrays[parent].n_children:
                    raise IndexError(child)
                out.arrays[row + 1] = out.arrays[parent].children[child]
            (<int32_t*>offsets.data)[0] = 0
            with nogil:
                for row in range(array.length):
                    start = out.data.size
                    fault = SOUND
                    if has_validity and is_null(array, array.offset + row):
                        nulls += 1
                    else:
                        self.state.failure.steps = 0
                        self.state.failure.node = -1
                        fault = emit(&out, begin, begin_size)
                        if not fault:
                            fault = write_node(&out, root, row, 0)
                        if not fault and out.data.size > INT_MOST:
                            fault = BATCH
                        if fault:
                            if fault >= BATCH:
                                break
                            out.data.size = start
                            nulls += 1
                            with gil:
                                bad.append(
                                    (row, fault, self.state.failure.node, self.state.failure.detail,
                                     frames(&self.state.failure))
                                )
                        else:
                            validity.data[row >> 3] |= <uint8_t>(1 << (row & 7))
                    (<int32_t*>offsets.data)[row + 1] = <int32_t>out.data.size
            if fault >= BATCH:
                return None, None, None, 0, bad, fault, row
            self.hint = out.data.size
            return (
                owned(&validity) if nulls else None, owned(&offsets), owned(&out.data), nulls, bad, SOUND, 0
            )
        finally:
            free(out.arrays)
            free(offsets.data)
            free(validity.data)
            free(out.data.data)
