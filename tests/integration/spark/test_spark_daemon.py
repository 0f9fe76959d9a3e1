"""Workers forked from a daemon that has imported their modules: each opens clients of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

PROGRAM = """
import os, sys
from headrace_spark import daemon

daemon.preload()
assert "grpc" in sys.modules and "pandas" in sys.modules
children = []
for number in range(3):
    pid = os.fork()
    if pid == 0:
        before = set(sys.modules)
        from headrace_spark.sdk_cluster import worker_cluster
        from headrace_spark.sink_task import worker_producer
        from headrace_spark.sink_topics import worker_admin

        client = {"bootstrap.servers": sys.argv[1]}
        worker_producer(client).send(sys.argv[2], b"%d" % number).result(60)
        assert worker_admin(client).describe_topics([sys.argv[2]])
        assert worker_cluster(client).topics([sys.argv[2]])
        late = {name.split(".")[0] for name in set(sys.modules) - before}
        assert not late & {"grpc", "pandas", "numpy", "pyarrow", "headrace_core", "headrace_protos"}, late
        os._exit(0)
    children.append(pid)
assert [os.waitpid(pid, 0)[1] for pid in children] == [0, 0, 0]
"""


def test_workers_of_the_daemon_open_clients_and_import_nothing_large(
    headrace: Any, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(1)
    command = [sys.executable, "-c", PROGRAM, headrace.bootstrap_servers, topic]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


RANDOM = """
import os, sys
if sys.argv[1] == "absent":
    sys.modules["pandas"] = None  # an import raises ImportError
from headrace_spark import daemon

daemon.preload()
import numpy

for _ in range(3):
    if os.fork() == 0:
        os.write(1, b"%r\\n" % float(numpy.random.rand()))
        os._exit(0)
    os.wait()
"""


@pytest.mark.parametrize("pandas", ["installed", "absent"])
def test_workers_of_the_daemon_draw_different_random_numbers(pandas: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RANDOM, pandas], capture_output=True, text=True, timeout=120, check=True
    )
    assert len(set(done.stdout.split())) == 3
