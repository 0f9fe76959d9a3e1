"""Ctrl-C at any point of a command ends it with 130 and prints no traceback: while modules are imported, while the
command works, while the interpreter ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.worlds.waiting import until

#: The console script, with a Ctrl-C when the module named first is about to be imported.
_PROBE = textwrap.dedent(
    """
    import os, signal, sys

    wanted = sys.argv.pop(1)

    class Interrupts:
        def find_spec(self, name, path=None, target=None):
            if name == wanted:
                sys.meta_path.remove(self)
                os.write(1, b"at " + name.encode())
                os.kill(os.getpid(), signal.SIGINT)

    sys.meta_path.insert(0, Interrupts())
    from headrace_tools.cli import main
    sys.exit(main())
    """
)
#: Modules of Headrace and of libraries, from the first import of the command line to the imports of the command itself.
_MODULES = (
    "headrace_tools.cli.app", "headrace_core.errors", "typer", "headrace_tools.cli.root", "headrace_tools.cli.topics",
    "headrace.admin", "headrace.settings", "asyncio", "grpc", "google.protobuf", "headrace_protos.v1",
)  # fmt: skip


#: The same of ``headrace-pipelines run orders``.
_PIPELINES = (
    "headrace_pipelines.cli", "headrace_core.errors", "headrace.settings", "headrace_pipelines.registry",
    "headrace_pipelines.orders.job", "headrace_pipelines.orders.database", "grpc",
)  # fmt: skip


def _run(probe: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", probe, *arguments, "topics", "list", "-b", "127.0.0.1:1"]
    # The child must not inherit an ignored SIGINT (a run in the background).
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("module", _MODULES)
def test_ctrl_c_during_an_import_ends_with_130_and_no_traceback(module: str) -> None:
    done = _run(_PROBE, module)
    assert done.stdout == f"at {module}", "the command does not import it: name another one"
    assert (done.returncode, done.stderr.replace("Aborted!", "").strip()) == (130, "")


@pytest.mark.parametrize("module", _PIPELINES)
def test_ctrl_c_during_an_import_of_a_pipeline_ends_with_130_and_no_traceback(module: str, tmp_path: Path) -> None:
    probe = _PROBE.replace("headrace_tools.cli", "headrace_pipelines.__main__")
    words = ["run", "orders", "-b", "127.0.0.1:1", "--out", str(tmp_path)]
    command = [sys.executable, "-c", probe, module, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.startswith(f"at {module}"), "the command does not import it: name another one"
    assert (done.returncode, done.stderr.strip()) == (130, "")
    assert len(done.stdout.splitlines()) == 1


def test_ctrl_c_while_a_pipeline_works_ends_with_130_and_a_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headrace_pipelines", "run", "orders", "-b", "127.0.0.1:1", "--out", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        until(lambda: (tmp_path / "run.json").exists(), "the run has begun")
        run.send_signal(signal.SIGINT)
        said, _ = run.communicate(timeout=60)
    assert run.returncode == 130
    assert said.strip() in ("", "interrupted: the processes of the run are stopped")
    assert json.loads((tmp_path / "run.json").read_text())["end"] == "interrupted"


def test_ctrl_c_after_the_command_ends_with_130_and_no_traceback() -> None:
    probe = _PROBE.replace(
        "sys.exit(main())", "main(); os.kill(os.getpid(), signal.SIGINT); import time; time.sleep(9)"
    )
    done = _run(probe, "no module")
    assert done.returncode == 130
    assert "Traceback" not in done.stderr


def test_an_ignored_ctrl_c_stays_ignored() -> None:
    probe = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + _PROBE
    done = _run(probe, "typer")
    assert done.returncode == 1
    assert "BOOTSTRAP_FAILED" in done.stderr


def test_the_packages_that_come_before_the_handler_import_nothing() -> None:
    probe = "import sys; before = set(sys.modules); import headrace_tools.cli; print(sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "['__future__', 'headrace_tools', 'headrace_tools.cli']"
