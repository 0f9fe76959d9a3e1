"""The cluster of a pipeline's run, which the run starts in its directory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace import Admin
from headrace_pipelines.places import Places, cluster_of
from headrace_pipelines.show import Show

#: A run that has created a topic, and waits to be killed.
RUN = """
import sys
from pathlib import Path
from headrace import Admin, NewTopic
from headrace_pipelines.places import Places, cluster_of
from headrace_pipelines.show import Show

with cluster_of(None, Places(Path(sys.argv[1])), Show(on_stderr=True)) as access:
    with Admin(access.admin()) as admin:
        admin.create_topics([NewTopic("kept")])
    print(access.servers, flush=True)
    sys.stdin.read()
"""


@pytest.mark.long
@pytest.mark.timeout(240)
def test_the_cluster_of_a_killed_run_starts_again_with_its_data_and_ports(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", RUN, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        before = run.stdout.readline().strip()
        run.kill()
    with (
        cluster_of(None, Places(tmp_path), Show(on_stderr=True)) as access,
        Admin(access.admin()) as admin,
    ):
        assert access.servers == before
        assert "kept" in admin.list_topics()
