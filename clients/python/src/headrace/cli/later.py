"""Commands whose server side is not built yet: they say so, with a typed error, instead of "no such command".

They are hidden from the help, so that nobody is offered what does not work.
"""

from __future__ import annotations

import typer

from headrace_core.errors import UnsupportedVersionError

_LATER = {
    "groups": (
        ("list", "describe", "members", "reset-offsets", "delete", "explain"),
        "consumer groups come with the coordinator, which is not built yet",
    ),
}


def register(app: typer.Typer) -> None:
    for noun, (verbs, reason) in _LATER.items():
        group = typer.Typer(help=f"Not built yet: {reason}.", no_args_is_help=True)
        for verb in verbs:
            _refuse(group, noun, verb, reason)
        app.add_typer(group, name=noun, hidden=True)


def _refuse(group: typer.Typer, noun: str, verb: str, reason: str) -> None:
    @group.command(verb, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
    def refuse(context: typer.Context) -> None:
        raise UnsupportedVersionError(f"`headrace {noun} {verb}`: {reason}")

    refuse.__doc__ = f"Not built yet: {reason}."
