"""The modules that a command imports. The imports determine most of a command's start time, and do not depend on the
machine."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headrace import __version__

_PROBE = (
    "import sys; before = set(sys.modules); sys.argv[1:] = {arguments!r}\n"
    "from headrace_tools.cli import main\n"
    "code = main()\n"
    "print(len(set(sys.modules) - before), *sorted(set(sys.modules) - before), file=sys.stderr)\n"
    "sys.exit(code)"
)


def started(*arguments: str) -> tuple[str, list[str]]:
    """The output of the command, and the modules that it imported."""
    probe = _PROBE.format(arguments=list(arguments))
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout, done.stderr.splitlines()[-1].split()[1:]


@pytest.mark.parametrize("arguments", [("--version",), ("version",)])
def test_the_version_imports_nothing_but_the_package_that_has_it(arguments: tuple[str, ...]) -> None:
    shown, modules = started(*arguments)
    assert shown == f"{__version__}\n"
    assert len(modules) <= 5, modules


def test_help_imports_the_parser_and_the_module_of_the_command() -> None:
    _, modules = started("topics", "-h")
    ours = {name.removeprefix("headrace_tools.cli.") for name in modules if name.startswith("headrace_tools.cli.")}
    assert ours == {"app", "client", "complete", "configs", "output", "pipes", "root", "times", "topics"}
    heavy = (
        "grpc",
        "google",
        "rich",
        "asyncio",
        "headrace.admin",
        "headrace.models",
        "headrace.cluster_models",
        "headrace_tools.local.cluster",
    )
    assert not [name for name in modules if name in heavy]
    assert len(modules) <= 280, len(modules)
