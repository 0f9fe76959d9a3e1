"""Start a worker of Kafka Connect in a container, with the keys of its environment: CONNECT_GROUP_ID is group.id.

In a variable's name, ``_`` stands for ``.``, ``__`` for ``_``, and ``___`` for ``-``. An empty variable counts as not
set, because compose files pass unset variables as "". KAFKA_HEAP_OPTS and KAFKA_OPTS are options of Java, as for
Kafka's own scripts. The program replaces itself with Java, so that Java receives the signals of the container engine.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

JARS, PLUGINS = "/opt/connect/jars", "/opt/connect/plugins"
SETTINGS = Path("/tmp/connect.properties")
MAIN = "org.apache.kafka.connect.cli.ConnectDistributed"
_PREFIX = "CONNECT_"
_SEPARATORS = {"_": ".", "__": "_", "___": "-"}


def settings(environment: Mapping[str, str], host: str) -> dict[str, str]:
    """The worker's keys. The defaults are for a container with the name ``host``: it listens on port 8083, and other
    workers reach it by its name. Raises ValueError for a variable whose name is no key."""
    found = {
        "listeners": "http://0.0.0.0:8083",
        "rest.advertised.host.name": host,
        "plugin.path": PLUGINS,
    }
    for name, value in sorted(environment.items()):
        if name.startswith(_PREFIX) and value.strip():
            found[_key(name)] = value.strip()
    return found


def _key(name: str) -> str:
    rest = name.removeprefix(_PREFIX)
    if not re.fullmatch(r"[A-Za-z0-9]+(_{1,3}[A-Za-z0-9]+)*", rest):
        raise ValueError(f"{name}: is no key of Kafka Connect; CONNECT_GROUP_ID, for example, is group.id")
    return re.sub(r"_+", lambda run: _SEPARATORS[run[0]], rest).lower()


def properties(values: Mapping[str, str]) -> str:
    """``values`` as a file that Java's Properties.load reads: ISO 8859-1, with escapes."""
    return "".join(f"{key}={_escaped(value)}\n" for key, value in values.items())


def _escaped(value: str) -> str:
    escapes = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    units = value.encode("utf-16-be")
    characters = (chr(int.from_bytes(units[at : at + 2], "big")) for at in range(0, len(units), 2))
    text = "".join(escapes.get(each) or (each if " " <= each <= "~" else f"\\u{ord(each):04x}") for each in characters)
    return f"\\{text}" if text.startswith(" ") else text  # Java skips spaces after the =


def java(environment: Mapping[str, str]) -> list[str]:
    """The command line of the worker."""
    options = [
        *shlex.split(environment.get("KAFKA_HEAP_OPTS") or "-Xmx512m"),
        "-XX:+ExitOnOutOfMemoryError",
        "-Dorg.slf4j.simpleLogger.showDateTime=true",
        "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSXXX",
        *shlex.split(environment.get("KAFKA_OPTS", "")),
    ]
    return ["java", *options, "-cp", f"{JARS}/*", MAIN, str(SETTINGS)]


def main() -> None:
    try:
        text = properties(settings(os.environ, socket.gethostname()))
    except ValueError as error:
        sys.exit(f"connect: {error}")
    with open(SETTINGS, "w", encoding="ascii", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
        file.write(text)  # it may hold passwords
    command = java(os.environ)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
