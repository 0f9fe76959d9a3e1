"""Several files are fsynced at the same time."""

from __future__ import annotations

import errno
import os
import random
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace_core.log import files
from headrace_core.log.files import RealFileSystem

native = pytest.mark.skipif(files._sync_descriptors is None, reason="headrace_core.log._sync is not compiled")


@pytest.mark.parametrize("count", [0, 1, 2, 16, 17, 40])
def test_every_file_is_forced_however_many_there_are(tmp_path, count):
    fs = RealFileSystem()
    opened = [fs.open(f"{tmp_path}/{number}", create=True) for number in range(count)]
    for file in opened:
        file.pwritev([b"x" * 5000], 0)
    fs.sync_files(opened)
    assert [file.pread(5000, 0) for file in opened] == [b"x" * 5000] * count


@native
def test_each_failure_is_reported_and_spares_no_other_file(tmp_path):
    assert files._sync_descriptors is not None
    sound = [os.open(tmp_path / str(number), os.O_RDWR | os.O_CREAT) for number in range(20)]
    left, right = socket.socketpair()  # fdatasync of a socket is EINVAL
    try:
        asked = [*sound[:3], left.fileno(), *sound[3:], right.fileno(), -1]
        expected = [0, 0, 0, errno.EINVAL, *[0] * 17, errno.EINVAL, errno.EBADF]
        assert files._sync_descriptors(asked) == expected
    finally:
        left.close()
        right.close()
        for descriptor in sound:
            os.close(descriptor)


@native
def test_a_failure_names_its_file(tmp_path):
    fs = RealFileSystem()
    sound, closed = fs.open(f"{tmp_path}/sound", create=True), fs.open(f"{tmp_path}/closed", create=True)
    closed.close()
    with pytest.raises(OSError, match="closed") as caught:
        fs.sync_files([sound, closed])
    assert caught.value.errno == errno.EBADF


@native
def test_callers_on_several_threads_get_the_results_of_their_own_files(tmp_path):
    """Their files wait in one queue for the same threads."""
    sync = files._sync_descriptors
    assert sync is not None
    sound = [os.open(tmp_path / str(number), os.O_RDWR | os.O_CREAT) for number in range(30)]

    def call(number: int) -> bool:
        rng = random.Random(number)
        for _ in range(30):
            asked = [rng.choice([*sound, -1]) for _ in range(rng.randrange(40))]
            if sync(asked) != [errno.EBADF if each < 0 else 0 for each in asked]:
                return False
        return True

    try:
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(call, range(8)))
    finally:
        for descriptor in sound:
            os.close(descriptor)


@native
def test_a_forked_process_syncs_with_threads_of_its_own(tmp_path):
    code = f"""
import os
import random
from headrace_core.log._sync import sync_descriptors
files = [os.open({str(tmp_path)!r} + f"/{{number}}", os.O_RDWR | os.O_CREAT) for number in range(4)]
assert sync_descriptors(files) == [0] * 4
child = os.fork()
if not child:
    os._exit(10 if sync_descriptors(files) == [0] * 4 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 10
assert sync_descriptors(files) == [0] * 4
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
