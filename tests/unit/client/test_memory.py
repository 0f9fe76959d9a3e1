"""Allocator settings of a whole process."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import {first}
import headrace
assert headrace.tune_memory()
import pyarrow
print(pyarrow.default_memory_pool().backend_name)
"""


@pytest.mark.parametrize("first", ["sys", "pyarrow"])
def test_arrow_uses_the_tuned_allocator_whenever_it_is_imported(first):
    pytest.importorskip("pyarrow")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(first=first)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "system"


def test_nothing_is_tuned_unasked():
    program = "import pyarrow, headrace; headrace.Producer; print(pyarrow.default_memory_pool().backend_name)"
    plain = "import pyarrow; print(pyarrow.default_memory_pool().backend_name)"
    outputs = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        for code in (program, plain)
    }
    assert len(outputs) == 1
