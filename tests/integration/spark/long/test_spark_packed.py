"""A pipeline on a standalone cluster of Spark, whose machines have Python and none of Headrace's packages."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyspark
import pytest

from headrace import Admin, Consumer, NewTopic, Producer, TopicPartition
from headrace_pipelines import cli
from headrace_spark.java import find_java
from headrace_tools.local import ports
from tests.worlds.waiting import until

pytestmark = pytest.mark.timeout(400)

ENVIRONMENT = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_NO_DAEMONIZE": "1"}


def _has(log: Path, line: str) -> bool:
    return line in log.read_text()


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The URL of a Spark master with one worker, both real processes."""
    port, *web_ports = ports.pick(3)
    url = f"spark://127.0.0.1:{port}"
    environment = {
        "PATH": os.defpath, "HOME": str(tmp_path), "JAVA_HOME": str(find_java()),
        "SPARK_HOME": str(Path(pyspark.__file__).parent), **ENVIRONMENT,
    }  # fmt: skip
    deploy = "org.apache.spark.deploy"
    commands = (
        ("master", f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port"),
        ("worker", f"{deploy}.worker.Worker", "--cores", "1", "--memory", "1g", "--work-dir", str(tmp_path / "work"),
         "--host", "127.0.0.1", url, "--webui-port"),
    )  # fmt: skip
    with contextlib.ExitStack() as stack:
        for (name, *command), web_port in zip(commands, web_ports, strict=True):
            log = stack.enter_context((tmp_path / f"{name}.log").open("w"))
            process = subprocess.Popen(
                [f"{environment['SPARK_HOME']}/bin/spark-class", *command, str(web_port)],
                env=environment, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
            stack.callback(process.wait, 30)
            stack.callback(process.terminate)
            said = "New state: ALIVE" if name == "master" else "Successfully registered with master"
            until(partial(_has, tmp_path / f"{name}.log", said), said, 60)
        yield url


def test_executors_take_the_packages_from_the_archive(
    headrace: Any, master: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["new", "parcels"]) == 0
    assert cli.main(["pack", "packed.tar.gz", "parcels"]) == 0
    venv.create(tmp_path / "bare", with_pip=False)
    python = tmp_path / "bare" / "bin" / "python"
    missing = subprocess.run([python, "-c", "import headrace_spark"], capture_output=True, check=False)
    assert b"No module named 'headrace_spark'" in missing.stderr
    with Admin(bootstrap_servers=headrace.bootstrap_servers) as admin:
        names = ["parcels", "parcels.dead-letters", "parcels-clean"]
        admin.delete_topics([name for name in names if name in admin.list_topics()])
        admin.create_topics([NewTopic(name, partitions=1) for name in names])
    with Producer(bootstrap_servers=headrace.bootstrap_servers) as producer:
        for value in (b'{"user":"ann","amount":1}', b"no JSON", b'{"user":"bob","amount":2}'):
            producer.send("parcels", value).result(60)
    done = subprocess.run(
        [sys.executable, "-m", "headrace_pipelines", "run", "parcels", "--once", "-o", "json",
         "--bootstrap-servers", headrace.bootstrap_servers, "--master", master, "--packed", "packed.tar.gz",
         "--checkpoints", f"file://{tmp_path}/checkpoints"],
        env={**os.environ, **ENVIRONMENT, "PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": sys.executable},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    with Consumer(bootstrap_servers=headrace.bootstrap_servers, isolation_level="read_committed") as consumer:
        consumer.assign([TopicPartition("parcels-clean", 0)])
        consumer.seek_to_beginning()
        users = [json.loads(record.value)["user"] for record in consumer.poll(timeout=30.0)]
    assert sorted(users) == ["ann", "bob"]
    unpacked = list((tmp_path / "work").glob("app-*/*/headrace-packages/parcels/__init__.py"))
    assert unpacked, "no executor has unpacked the archive"
