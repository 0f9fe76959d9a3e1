"""Install into .venv: pinned build tools, every dependency, our distributions (editable), and compiled modules. Run by
tools/setup.sh.

A stamp file in .venv stores digests of the inputs, so that a second run repeats only steps whose inputs changed. A
change of constraints or of the dev group runs pip for everything. A change of a pyproject.toml runs pip for its
distribution. A change of a .pyx compiles the changed modules of its distribution. A change of a .pxd compiles
everything, because distributions use the .pxd files of other distributions. Every run writes the outdated bytecode
files again. pip writes bytecode for packages that it installs, but not for editable packages. With
PYTHONDONTWRITEBYTECODE and no bytecode, each node of each test would compile all its imports, which takes half of the
processor time of its start. The archive from which Spark's workers import pyspark gets bytecode, too.
"""

from __future__ import annotations

import compileall
import fcntl
import hashlib
import importlib.util
import json
import os
import py_compile
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
STAMP = Path(sys.prefix) / "headrace-setup.json"

#: A dictionary of the distributions' directories, each with the extras to install in a checkout.
DISTRIBUTIONS = {
    "protos": "",
    "core": "[server,oauthbearer,arrow,zstd,snappy,otel]",
    "kafka-protocol": "",
    "services/controller": "",
    "services/broker": "",
    "services/coordinator": "",
    "services/registry": "",
    "services/console": "",
    "clients/python": "[arrow,zstd,snappy,schemas]",
    "clients/tools": "[cluster]",
    "pipelines/spark": "[otel]",
    "pipelines/library": "[lake,postgres]",
}
BUILD_TOOLS = ["pip", "setuptools", "wheel", "Cython"]


def say(text: str) -> None:
    print(f"setup: {text}", file=sys.stderr, flush=True)


def digest(paths: Iterable[Path], *extra: str) -> str:
    """Compute one digest of the names and contents of the files, and of ``extra``."""
    total = hashlib.sha256("\0".join(extra).encode())
    for path in sorted(paths):
        total.update(f"\0{path.relative_to(ROOT)}\0".encode())
        total.update(path.read_bytes())
    return total.hexdigest()


def what_is_installed_from() -> dict[str, str]:
    """For each distribution, the digest of the files from which pip installs it."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    common = digest([ROOT / "constraints.txt"], json.dumps([groups, BUILD_TOOLS]), sys.version, str(ROOT))
    return {
        directory: digest((ROOT / directory).glob("pyproject.toml"), extras, common)
        for directory, extras in DISTRIBUTIONS.items()
    }


def native_sources(directory: str) -> list[Path]:
    return list((ROOT / directory / "src").rglob("*.pyx"))


def declarations() -> str:
    """Digest of the .pxd files. The .pxd files declare struct layouts that must be equal in all compiled modules."""
    return digest([p for d in DISTRIBUTIONS for s in ("pxd", "h") for p in (ROOT / d / "src").rglob(f"*.{s}")])


def what_is_compiled_from(directory: str) -> str:
    setup = ROOT / directory / "setup.py"
    return digest([*native_sources(directory), *([setup] if setup.exists() else [])], sys.version, str(ROOT))


def is_compiled(directory: str) -> bool:
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    return all(p.with_name(p.stem + suffix).exists() for p in native_sources(directory))


def run(*command: str, cwd: Path = ROOT, **variables: str) -> None:
    """Run a command quietly; on failure print its output and exit with its code."""
    environment = {
        **os.environ,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_ROOT_USER_ACTION": "ignore",
        # With this include path Cython finds the .pxd files of the other distributions before any distribution is
        # installed.
        "PYTHONPATH": os.pathsep.join(str(ROOT / directory / "src") for directory in DISTRIBUTIONS),
        **variables,
    }
    done = subprocess.run(
        command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        sys.stderr.write(done.stdout)
        say(f"failed: {' '.join(command)} (in {cwd}, exit {done.returncode})")
        raise SystemExit(done.returncode)


class Timed:
    """Context manager ``with Timed("what"):`` that prints the name of a step, and then its duration."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __enter__(self) -> None:
        self.started = time.monotonic()
        say(f"{self.what} ...")

    def __exit__(self, failure: object, *rest: object) -> None:
        if failure is None:
            say(f"{self.what}: {time.monotonic() - self.started:.1f} s")


def load_stamp() -> dict[str, Any]:
    try:
        stamp = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def save_stamp(stamp: dict[str, Any]) -> None:
    partial = STAMP.with_suffix(".tmp")
    partial.write_text(json.dumps(stamp, indent=1))
    partial.replace(STAMP)


def install(directories: list[str]) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--constraint", "constraints.txt"]
    with Timed("build tools"):
        run(*pip, *BUILD_TOOLS)
    editable = [part for path in directories for part in ("--editable", f"./{path}{DISTRIBUTIONS[path]}")]
    with Timed(f"dependencies and {len(directories)} distributions, native code compiled"):
        run(*pip, "--no-build-isolation", "--group", "dev", *editable)


def compile_in_place(directory: str, *, anew: bool) -> None:
    """Compile the changed modules of a distribution; with ``anew`` compile all its modules."""
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace", *(["--force"] if anew else [])]
    with Timed(f"native code of {directory}"):
        run(*command, cwd=ROOT / directory, **({"CYTHON_FORCE_REGEN": "1"} if anew else {}))


def write_bytecode() -> None:
    for directory in DISTRIBUTIONS:  # modules that fail to compile are reported on import
        compileall.compile_dir(str(ROOT / directory / "src"), quiet=2)


def add_bytecode_to_spark() -> None:
    """Add bytecode to the archive from which Spark's Python workers import pyspark. Without bytecode each worker
    compiles pyspark again, which takes 0.7 of the 1.2 s of processor time of its start."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        return
    archive = Path(found.origin).parent / "python" / "lib" / "pyspark.zip"
    if not archive.exists():
        return
    with zipfile.ZipFile(archive) as old:
        if "pyspark/__init__.pyc" in old.namelist():
            return
        with Timed("bytecode for Spark's workers"), tempfile.TemporaryDirectory(dir=archive.parent) as directory:
            old.extractall(directory)
            for path in sorted(Path(directory).rglob("*.py")):
                if "tests" not in path.relative_to(directory).parts:
                    # Write each .pyc file to the directory of its source, and as "unchecked": Python must not compare
                    # the source's time with the .pyc's, because an archive stores times with a resolution of two
                    # seconds.
                    compileall.compile_file(
                        path,
                        stripdir=directory,
                        quiet=2,
                        legacy=True,
                        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
                    )
            partial = archive.with_suffix(".tmp")
            with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as new:
                for path in sorted(Path(directory).rglob("*")):
                    new.write(path, path.relative_to(directory))
            partial.replace(archive)


def enable_hooks() -> None:
    """Configure git to run the hooks in .githooks/, unless this clone has its own hooks. Without git, or outside of a
    clone, the function does nothing."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        return

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.strip()

    if git("config", "core.hooksPath"):
        return
    hooks = ROOT / git("rev-parse", "--git-path", "hooks")
    if not (hooks.is_dir() and any(hook.suffix != ".sample" for hook in hooks.iterdir())):
        git("config", "core.hooksPath", ".githooks")


def main() -> None:
    started = time.monotonic()
    with (STAMP.parent / "headrace-setup.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # if two `make` run, the second waits, then finds nothing to do
        stamp = load_stamp()
        wanted = what_is_installed_from()
        native = [directory for directory in DISTRIBUTIONS if native_sources(directory)]
        installed = stamp.get("installed", {})
        if not isinstance(installed, dict):  # the stamp file has an older format
            installed = {}
        changed = [path for path in DISTRIBUTIONS if installed.get(path) != wanted[path]]
        if changed:
            STAMP.unlink(missing_ok=True)
            compiled_from = {
                directory: what_is_compiled_from(directory) for directory in native if directory in changed
            }
            if len(compiled_from) == len(native):
                compiled_from["declarations"] = declarations()
            install(changed)
            stamp |= {"installed": wanted} | compiled_from
        declared = declarations()
        anew = stamp.get("declarations") != declared
        for directory in native:
            compiled_from_now = what_is_compiled_from(directory)
            if anew or stamp.get(directory) != compiled_from_now or not is_compiled(directory):
                compile_in_place(directory, anew=anew)
                stamp[directory] = compiled_from_now
        stamp["declarations"] = declared
        save_stamp(stamp)
        write_bytecode()
        add_bytecode_to_spark()
        enable_hooks()
    say(f"ready in {time.monotonic() - started:.1f} s ({sys.prefix}, Python {sys.version.split()[0]})")


if __name__ == "__main__":
    main()
