"""Runs the commands of the README's first five minutes as they are written. Only the ports differ from the README, and
other tests cover Spark."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from headrace_tools.local import ports
from tests.docs import documented_pages as pages

README = Path(__file__).parents[2] / "README.md"


def test_the_first_five_minutes_run_as_they_are_written(tmp_path: Path) -> None:
    text = README.read_text()
    section = text[text.index("## Start a cluster") : text.index("## Is it for you?")]
    blocks = [
        (kind, body)
        for kind, body in re.findall(r"```(sh|python)\n(.*?)```", section, re.DOTALL)
        if "headrace_spark" not in body and "make demo" not in body
    ]
    others = [block for block in pages.blocks("README.md") if not block.not_run and "headrace_spark" not in block.text]
    assert len(others) == len(blocks), "a block that nothing runs"
    assert [kind for kind, _ in blocks] == ["sh", "python", "sh"]
    address = f"127.0.0.1:{ports.pick(1)[0]}"
    script = ["set -e"]
    for kind, body in blocks:
        lines = [line for line in body.splitlines() if not line.startswith("make setup")]
        output = "\n".join(lines).replace(
            "headrace up ", f"headrace up --port {address.rpartition(':')[2]} --kafka-port 0 "
        )
        script.append(f"python - <<'END'\n{output}\nEND" if kind == "python" else output)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HEADRACE_")}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    environment["HEADRACE_BOOTSTRAP_SERVERS"] = address
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    subprocess.run(
        ["headrace", "down", "--data", "data"], cwd=tmp_path, env=environment, capture_output=True, check=False
    )
    assert done.returncode == 0, done
    assert re.search(r"^hello$", done.stdout, re.MULTILINE), done
    assert "b'customer 7' b'one crate'" in done.stdout
    assert re.search(r"^packers +orders +\d", done.stdout, re.MULTILINE), "what the group has committed"
    assert "the data is deleted" in done.stdout
    assert not (tmp_path / "data").exists()


def test_the_two_commands_for_all_of_it_are_named() -> None:
    """Developers set the project up with the commands of the README, and CI runs the same commands."""
    commands = {line.split("  ")[0] for block in pages.blocks("README.md") for line in block.text.splitlines()}
    assert {"make demo", "make test"} <= commands
