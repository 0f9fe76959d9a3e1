"""The driver that a test starts in a session of its own ends with the test."""

from __future__ import annotations

import subprocess
import sys

from headrace_tools.local.processes import identify

DRIVER = """
import os, subprocess, sys
from headrace_pipelines.testing import end_with
worker = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
print(os.getpid(), worker.pid, flush=True)
end_with(int(sys.argv[1]))
"""
TEST = f"""
import os, subprocess, sys
driver = subprocess.Popen(
    [sys.executable, "-c", {DRIVER!r}, str(os.getpid())], start_new_session=True, stdout=subprocess.PIPE, text=True
)
print(driver.stdout.readline(), flush=True)
input()
"""


def test_a_driver_and_its_workers_end_with_the_test_that_started_them() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", TEST], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as test:
        assert test.stdout is not None
        session = [identify(int(pid)) for pid in test.stdout.readline().split()]
        test.kill()
        test.wait()
    assert len(session) == 2
    assert all(process is not None and process.wait(30) for process in session)
