"""Connection profiles: named sets of client keys in files, such as ``staging.properties`` with ``bootstrap.servers``.

Each profile is a properties file (kcat's ``-F`` reads it too); the file ``.current`` in the same directory has the name
of the current profile. The directory is ``HEADRACE_PROFILES``, otherwise ``$XDG_CONFIG_HOME/headrace/profiles``
(``~/.config`` by default); only its owner can read it.

Only the command line reads profiles; programs pass their configuration to the clients.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace_core.config import ConfigDef
from headrace_core.errors import InvalidArgumentError, InvalidConfigError
from headrace_core.node.properties import Properties, format_properties, read_properties

from ..durable import replace_file

VARIABLE = "HEADRACE_PROFILE"
DIRECTORY_VARIABLE = "HEADRACE_PROFILES"
_SUFFIX = ".properties"
_CURRENT = ".current"
_NEVER = ("group.id", "group.instance.id")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A profile, as read from its file. Each value in ``values`` remembers its line number in the file."""

    name: str
    path: Path
    values: Properties

    def keys_of(self, kind: str) -> dict[str, str]:
        """The profile's keys for a client of ``kind`` (``admin``, ``producer``, ``consumer``): an admin client has no
        ``acks``, for example.

        The keys do not include ``group.id``: a consumer with a group commits offsets, and only ``consume -G`` should
        commit offsets. Raises InvalidConfigError for a key that no client knows, with the key's line and a "did you
        mean".
        """
        from headrace.settings import ADMIN, CONSUMER, PRODUCER

        definitions = {each.where: each for each in (ADMIN, PRODUCER, CONSUMER)}
        found: dict[str, str] = {}
        for key, value in self.values.items():
            knowing = [where for where, each in definitions.items() if _knows(each, key)]
            if not knowing:
                known = sorted({name for each in definitions.values() for name in each.keys})
                raise InvalidConfigError(
                    f"{self.values.set_in[key]}: no client has a configuration key {key!r}{_meant(key, known)}"
                )
            if kind in knowing and key not in _NEVER:
                found[key] = value
        return found

    def is_secret(self, key: str) -> bool:
        """Whether the value of a key is a password, or may be one because no client knows the key."""
        from headrace.settings import ADMIN, CONSUMER, PRODUCER

        knowing = [each.key(key) for each in (ADMIN, PRODUCER, CONSUMER) if _knows(each, key)]
        return not knowing or any(each.sensitive for each in knowing)

    def check(self) -> None:
        """Raise InvalidConfigError if a client would refuse the profile."""
        from headrace.settings import ADMIN, CONSUMER, PRODUCER, resolve

        for definition in (ADMIN, PRODUCER, CONSUMER):
            resolve(definition, self.keys_of(definition.where), {})


class ProfileFiles:
    def __init__(self) -> None:
        home = os.environ.get("XDG_CONFIG_HOME") or str(Path(os.environ.get("HOME") or "~").expanduser() / ".config")
        self.directory = Path(os.environ.get(DIRECTORY_VARIABLE) or Path(home) / "headrace" / "profiles")

    def names(self) -> list[str]:
        return sorted(path.name.removesuffix(_SUFFIX) for path in self.directory.glob(f"*{_SUFFIX}"))

    def current(self) -> str | None:
        """The name that ``headrace profile use`` has set; None if no name is set."""
        try:
            return (self.directory / _CURRENT).read_text(encoding="utf-8").strip() or None
        except FileNotFoundError:
            return None

    def path(self, name: str) -> Path:
        """The path of a profile's file, whether it exists or not. Raises InvalidArgumentError for an invalid name."""
        if not _NAME.fullmatch(name):
            raise InvalidArgumentError(
                f"invalid profile name {name!r}: use letters, digits, dots, dashes and underscores; the name must "
                "not begin with a dot"
            )
        return self.directory / (name + _SUFFIX)

    def read(self, name: str) -> Profile:
        """Read a profile. Raises InvalidArgumentError if the profile's file is missing, InvalidConfigError if the file
        is not a properties file."""
        path = self.path(name)
        if not path.exists():
            there = ", ".join(self.names()) or "none"
            raise InvalidArgumentError(
                f"profile {name!r} does not exist in {self.directory} (profiles: {there}); "
                f"create it with `headrace profile set {name} -b HOST:PORT`"
            )
        return Profile(name=name, path=path, values=read_properties(path))

    def write(self, name: str, values: Mapping[str, str]) -> Profile:
        """Create or replace a profile. Raises InvalidConfigError, and changes nothing, if a client would refuse the
        profile."""
        path = self.path(name)
        contents = Properties(values, set_in=dict.fromkeys(values, f"profile {name}"))
        profile = Profile(name=name, path=path, values=contents)
        for key, value in values.items():
            if not value.isprintable():
                shown = "[hidden]" if profile.is_secret(key) else repr(value)
                raise InvalidConfigError(f"{key}={shown}: must be one line of printable characters")
        profile.check()
        escaped = {key: value.replace("\\", "\\\\") for key, value in values.items()}
        self._replace(path, format_properties(escaped, comment=f"a profile of the command line: --profile {name}"))
        return profile

    def use(self, name: str | None) -> None:
        """Make ``name`` the current profile; None: no profile is current."""
        if name is None:
            (self.directory / _CURRENT).unlink(missing_ok=True)
            return
        self.read(name)
        self._replace(self.directory / _CURRENT, name + "\n")

    def delete(self, name: str) -> None:
        """Delete a profile; after the deletion of the current profile, no profile is current."""
        self.read_path(name).unlink()
        if self.current() == name:
            self.use(None)

    def read_path(self, name: str) -> Path:
        """The path of an existing profile's file, whether its contents are valid or not."""
        path = self.path(name)
        if not path.exists():
            self.read(name)
        return path

    def _replace(self, path: Path, text: str) -> None:
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_file(path, text)


def _knows(definition: ConfigDef, key: str) -> bool:
    try:
        definition.key(key)
    except InvalidConfigError:
        return False
    return True


def _meant(key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
