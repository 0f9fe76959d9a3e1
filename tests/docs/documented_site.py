"""The environment in which tests run the blocks of pages: a directory, a shell, and the address of a cluster."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.docs import documented_pages as pages

#: Command on a page -> command that the test runs. Views that never end, such as `headrace top`, print once in tests.
#: The doctor may report a fault of this machine, and a move of twenty records ends before it can be cancelled. Any
#: other error of the doctor or of the move is a failure of the test.
ONCE = (
    (r" --watch\b", ""),
    (r"^headrace top\b", "headrace top --once -i 0.2"),
    (r"^(headrace doctor\b)", r"may_name 'disk-full|disk-slow|clock-skew' \1"),
    (r"^(headrace partitions reassign --cancel\b)", r"may_name NO_REASSIGNMENT_IN_PROGRESS \1"),
)

#: ``may_name CODES COMMAND...``: the command may exit with 1 if it reports problems whose codes are all in CODES.
MAY_NAME = r"""
may_name() {
  local codes=$1 code=0 said named
  shift
  said=$("$@" 2>&1) || code=$?
  printf '%s\n' "$said"
  [ "$code" -ne 0 ] || return 0
  [ "$code" -eq 1 ] || return "$code"
  named=$(grep -oE '\[[A-Za-z_-]+\]$|"rule": *"[a-z-]+"' <<<"$said") || return 1
  ! grep -vE "\[($codes)\]|\"($codes)\"" <<<"$named" >&2
}
"""


@dataclass(frozen=True)
class Site:
    """A directory in which the blocks of pages run, and the address of the cluster in it."""

    directory: Path
    address: str

    def environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("HEADRACE_")}
        path = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
        return kept | {
            "PATH": path,
            "HEADRACE_BOOTSTRAP_SERVERS": self.address,
            "HEADRACE_PROFILES": str(self.directory / "profiles"),
        }

    def bash(self, script: str, *, timeout_s: float = 400) -> str:
        """Run the script, and return its output. A failure shows all of the output; the last `@@ page:line` names the
        block that failed."""
        process = subprocess.Popen(
            ["bash", "-e", "-o", "pipefail", "-c", script],
            cwd=self.directory,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=timeout_s)
        finally:
            with contextlib.suppress(ProcessLookupError):  # background processes that the script did not end
                os.killpg(process.pid, signal.SIGKILL)
        assert process.returncode == 0, f"exit code {process.returncode}\n{err}\n{out}"
        assert "Traceback" not in err, err
        return out

    def follow(self, *followed: str, but: Callable[[pages.Block], bool] = lambda block: False) -> str:
        """Run the blocks of the given pages in one shell, and return the output."""
        script = [MAY_NAME]
        for block in (block for page in followed for block in pages.blocks(page)):
            if block.language not in ("sh", "python") or block.not_run or but(block):
                continue
            text = block.text.replace("127.0.0.1:9095", self.address)
            if block.language == "python":
                text = f"python - <<'END'\n{text}END\n"
            else:
                for typed, run in ONCE:
                    text = re.sub(typed, run, text, flags=re.MULTILINE)
            script.append(pages.shell(text, str(block)))
        return self.bash("".join(script))


def about_disks(block: pages.Block) -> bool:
    """Whether the block is about disks: the tests run such blocks on a broker with several log directories."""
    return block.heading in ("Disks", "A broker with several disks")
