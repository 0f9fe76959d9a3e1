"""References to secrets: ``${env:NAME}``, ``${file:PATH}`` and ``${file:PATH:KEY}`` in values that are secret.

The first form is Kafka's EnvVarConfigProvider, the last Kafka's FileConfigProvider. ``${file:PATH}`` is the whole file
without the line break at its end. With references, a properties file or a profile need not contain the secret itself.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..errors import InvalidConfigError

SECRET_BYTES_MAX = 1024 * 1024
_REFERENCE = re.compile(r"\$\{(env|file):([^}]*)\}")


def dereferenced(text: str, key: str) -> str:
    """Replace the references in the value of ``key``. Raises InvalidConfigError, which names the variable or the
    file."""
    return _REFERENCE.sub(lambda found: _value(found[1], found[2], key), text) if "${" in text else text


def _value(kind: str, name: str, key: str) -> str:
    if kind == "env":
        value = os.environ.get(name)
        if value is None:
            raise InvalidConfigError(f"{key}: the environment variable {name[:100]} is not set")
        return value
    path, colon, entry = name.rpartition(":")
    if colon:
        for line in read_secret(path, key).splitlines():
            left, equals, right = line.partition("=")
            if equals and left.strip() == entry:
                return right.strip()
        raise InvalidConfigError(f"{key}: {path} has no line {entry[:100]}=…")
    return read_secret(name, key)


def read_secret(path: str, key: str) -> str:
    """The text of a file without the line break at its end. Raises InvalidConfigError."""
    try:
        with Path(path).expanduser().open(encoding="utf-8") as file:
            text = file.read(SECRET_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidConfigError(f"{key}: cannot read {path}: {reason}") from None
    if len(text) > SECRET_BYTES_MAX:
        raise InvalidConfigError(f"{key}: {path} has more than {SECRET_BYTES_MAX} characters")
    return text.removesuffix("\n").removesuffix("\r")
