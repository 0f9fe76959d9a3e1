"""Allocator settings for the whole process."""

from __future__ import annotations

import os
import sys


def tune_memory() -> bool:
    """Keep large buffers in the heap instead of mapping each buffer; return True if the C library accepted the
    settings.

    By default each record batch or Arrow column (megabytes) is mapped, zeroed by the kernel, and unmapped after use.
    ``fetch_arrow`` was a quarter to a third faster with the allocator settings in our measurement. The allocator
    settings change the whole process: glibc's thresholds, and Arrow's default memory pool, which becomes the system
    allocator. Importing Headrace does not apply the allocator settings, because they make a process keep freed memory.
    Call ``tune_memory`` once, at the start of your program. ``headrace bench`` does.
    """
    from headrace_core.rpc.environment import tune_malloc

    if not tune_malloc():
        return False
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # pyarrow reads it on import
    if "pyarrow" in sys.modules and os.environ["ARROW_DEFAULT_MEMORY_POOL"] == "system":
        import pyarrow as pa

        pa.set_memory_pool(pa.system_memory_pool())
    return True
