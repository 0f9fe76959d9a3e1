"""Start a controller whose disk is full."""

from __future__ import annotations

import errno

import pytest

from headrace_core.errors import DiskFullError
from headrace_core.testing.crashing_fs import Loss
from tests.worlds.controllers_world import formatted, open_storage


@pytest.mark.parametrize("operation", ["create", "write"])
def test_a_start_that_needs_space_says_that_the_disk_is_full(operation: str) -> None:
    """The start must create the log. The error must name the cause and the remedy, and not only ENOSPC."""
    disk = formatted()
    refusals = 0
    for nth in range(1, 10):
        fs = disk.crash_clone(loss=Loss.NONE)
        fs.fail(operation, errno.ENOSPC, nth=nth, times=1_000)
        try:
            open_storage(fs).close()
        except DiskFullError as error:
            refusals += 1
            assert "free some space" in error.message, nth  # noqa: PT017 - most steps do not fail
        fs.faults.clear()
        open_storage(fs).close()  # nothing is lost
    assert refusals >= 2


def test_a_start_on_a_disk_that_fails_says_so() -> None:
    disk = formatted()
    disk.fail("create", errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        open_storage(disk)
