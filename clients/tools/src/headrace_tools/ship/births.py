"""The birth time of a file, which no other file with the same inode number has.

Python's ``os.stat`` has no birth time on Linux, so this module calls the C library's statx (Linux 4.11, glibc 2.28).
"""

from __future__ import annotations

import ctypes
import struct

_EMPTY_PATH = 0x1000  # AT_EMPTY_PATH: the descriptor itself
_BTIME = 0x800  # STATX_BTIME, in the request and in the mask of the answer
_STATX_BYTES, _BTIME_AT = 256, 80
_statx = getattr(ctypes.CDLL(None), "statx", None)


def born_ns(descriptor: int) -> int:
    """The birth time of an open file in ns since 1970; 0 if the file system or the C library has none (NFS, musl)."""
    if _statx is None:
        return 0
    answer = ctypes.create_string_buffer(_STATX_BYTES)
    if _statx(descriptor, b"", _EMPTY_PATH, _BTIME, answer) != 0:
        return 0
    (mask,) = struct.unpack_from("=I", answer)
    seconds, nanoseconds = struct.unpack_from("=qI", answer, _BTIME_AT)
    return int(seconds * 1_000_000_000 + nanoseconds) if mask & _BTIME else 0
