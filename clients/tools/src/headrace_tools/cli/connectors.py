"""``connectors list|create|status|restart|delete``: the connectors of Kafka Connect's workers, over their REST API."""

from __future__ import annotations

import enum
import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .output import Output, OutputFormat, key_values, note, print_json, print_table, show, usage_of
from .times import duration

if TYPE_CHECKING:
    from ..kafka_connect import ConnectClient, ConnectorStatus

DEFAULT_URL = "http://127.0.0.1:8083"
#: Exit code of --fail-on; a failed command ends with 1, a wrong command line with 2.
_FAIL_ON_EXIT_CODE = 3
#: Maximum size in bytes of a configuration file, because Connect stores a configuration in one record.
_FILE_BYTES_MAX = 1024 * 1024
_TIMEOUT_S = 60.0
#: The states in which Connect can create a connector (KIP-980).
_INITIAL_STATES = ("RUNNING", "PAUSED", "STOPPED")
#: The keys of Connect's requests and answers about a connector.
_BESIDE_CONFIG = {"name", "config", "initial_state", "tasks", "type"}


class FailOn(enum.StrEnum):
    FAILED = "failed"
    NOT_RUNNING = "not-running"


Url = Annotated[
    str,
    typer.Option(
        "--connect-url",
        metavar="URL,...",
        envvar="HEADRACE_CONNECT_URL",
        help="URLs of Kafka Connect's workers; the first worker that accepts a connection is used. A URL may contain "
        "user:password@.",
    ),
]
Timeout = Annotated[
    float,
    duration(
        "--timeout",
        help="How long to wait for an answer of Kafka Connect, and for the end of a rebalance.",
        least_s=0.1,
    ),
]
_Name = Annotated[str, typer.Argument(metavar="NAME", help="The connector.")]
_FailOn = Annotated[
    FailOn | None,
    typer.Option("--fail-on", help="Exit with 3 if a connector or a task has failed, or is not running."),
]


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        help="Connectors of Kafka Connect: list, create, status, restart, delete.", no_args_is_help=True
    )
    group.callback()(_group)
    group.command("list")(list_connectors)
    group.command("create")(create)
    group.command("status")(status)
    group.command("restart")(restart)
    group.command("delete")(delete)
    app.add_typer(group, name="connectors")


def _group() -> None:
    """Show and change the connectors of Kafka Connect, over the REST API of its workers."""


def list_connectors(
    fail_on: _FailOn = None,
    url: Url = DEFAULT_URL,
    timeout: Timeout = _TIMEOUT_S,
    output: Output = OutputFormat.TEXT,
) -> None:
    """List the connectors with their states. The column TASKS shows the number of running tasks and the number of all
    tasks.

    \b
    Examples:
      headrace connectors list
      headrace connectors list --fail-on failed || echo alert
      headrace connectors list -o json      [{"name", "type", "state", "worker_id", "trace", "tasks": [...], "class"}]
    """
    from ..kafka_connect import plain

    found = _client(url, timeout).list()
    if output is OutputFormat.JSON:
        print_json([_document(each.status) | {"class": each.connector_class} for each in found])
    else:
        print_table(
            ("NAME", "TYPE", "STATE", "TASKS", "CLASS"),
            [
                tuple(map(plain, (s.name, s.type, s.state, _running(s), each.connector_class)))
                for each in found
                for s in (each.status,)
            ],
        )
    _judge(fail_on, [each.status for each in found])


def create(
    name: _Name,
    config: Annotated[
        list[str] | None,
        typer.Option("-c", "--config", metavar="KEY=VALUE", help="A key of the connector's configuration; repeatable."),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(
            "-f",
            "--file",
            metavar="FILE",
            help='A JSON file: {"KEY": "VALUE", ...}, or {"name": "NAME", "config": {...}}; - for stdin. '
            '-c overrides keys of the file. "initial_state": "STOPPED" beside "config" starts no tasks.',
        ),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Give an existing connector this configuration, and restart its tasks.")
    ] = False,
    wait: Annotated[
        float | None,
        duration(
            "--wait",
            help="How long to wait until the new connector and its tasks run; fails when one of them fails.",
        ),
    ] = None,
    url: Url = DEFAULT_URL,
    timeout: Timeout = _TIMEOUT_S,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Create a connector. Connect checks the configuration first, and starts the tasks later: --wait waits for the
    tasks.

    \b
    Examples:
      headrace connectors create lines -c connector.class=FileStreamSource -c topic=lines -c file=/tmp/lines.txt
      headrace connectors create lines -f lines.json --wait 30s
      headrace connectors create lines -f lines.json -c tasks.max=2 --replace
      headrace connectors create lines -f lines.json -o json                          {"name", "created"}
    """
    if replace and wait is not None:
        raise typer.BadParameter("--wait waits only for a new connector; leave out --replace", param_hint="--wait")
    kept, initial_state = ({}, None) if file is None else _read(file, name)
    wanted = kept | key_values(config or (), "-c")
    if not wanted:
        raise typer.BadParameter("pass the configuration: -c KEY=VALUE, or -f FILE", param_hint="-c")
    if replace and initial_state is not None:
        raise typer.BadParameter(
            f"{file}: --replace keeps the state of a connector; remove initial_state from the file", param_hint="-f"
        )
    if wait is not None and initial_state not in (None, "RUNNING"):
        raise typer.BadParameter(
            f"{file}: --wait waits for running tasks, but initial_state is {initial_state}", param_hint="--wait"
        )
    client = _client(url, timeout)
    is_new = True
    if replace:
        is_new = client.replace(name, wanted)
    else:
        client.create(name, wanted, initial_state=initial_state)
    if wait is not None:
        note(f"created {name}; waiting until its tasks run")
        client.wait_until_running(name, wait)
    done = "created" if is_new else "changed the configuration of"
    show(output, {"name": name, "created": is_new}, f"{done} {name}")


def status(
    name: _Name,
    fail_on: _FailOn = None,
    url: Url = DEFAULT_URL,
    timeout: Timeout = _TIMEOUT_S,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Show the state of a connector and of its tasks, the workers that run them, and the cause of a failure. -o json
    has the whole stack trace.

    \b
    Examples:
      headrace connectors status lines
      headrace connectors status lines --fail-on not-running
      headrace connectors status lines -o json      {"name", "type", "state", "worker_id", "trace",
                                                       "tasks": [{"id", "state", "worker_id", "trace"}]}
    """
    from ..kafka_connect import first_line, plain

    found = _client(url, timeout).status(name)
    if output is OutputFormat.JSON:
        print_json(_document(found))
    else:
        parts = [(found.type or "connector", found.state, found.worker_id, found.trace)]
        parts += [(f"task {task.id}", task.state, task.worker_id, task.trace) for task in found.tasks]
        print_table(
            ("PART", "STATE", "WORKER", "ERROR"),
            [(plain(part), plain(state), plain(on), first_line(trace) or None) for part, state, on, trace in parts],
        )
    _judge(fail_on, [found])


def restart(
    name: _Name,
    task: Annotated[int | None, typer.Option("--task", metavar="N", min=0, help="Restart only this task.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Restart only failed tasks and a failed connector.")] = False,
    url: Url = DEFAULT_URL,
    timeout: Timeout = _TIMEOUT_S,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Restart a connector and its tasks. The command returns before the tasks run: `headrace connectors status` shows
    their state.

    \b
    Examples:
      headrace connectors restart lines
      headrace connectors restart lines --failed
      headrace connectors restart lines --task 0
      headrace connectors restart lines -o json      {"name", "task", "only_failed"}
    """
    if task is not None and failed:
        raise typer.BadParameter("pass only one of --task and --failed", param_hint="--failed")
    client = _client(url, timeout)
    if task is not None:
        client.restart_task(name, task)
    else:
        client.restart(name, only_failed=failed)
    what = f"task {task} of {name}" if task is not None else f"the failed parts of {name}" if failed else name
    show(output, {"name": name, "task": task, "only_failed": failed}, f"restarting {what}")


def delete(
    name: _Name,
    url: Url = DEFAULT_URL,
    timeout: Timeout = _TIMEOUT_S,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Stop a connector and delete its configuration. Its topics stay. A source keeps its offsets: a new connector of
    the same name continues where the deleted connector ended. A sink keeps its consumer group connect-NAME.

    \b
    Examples:
      headrace connectors delete lines
      headrace connectors delete lines -o json      {"name"}
    """
    _client(url, timeout).delete(name)
    show(output, {"name": name}, f"deleted {name}")


def _client(urls: str, timeout_s: float) -> ConnectClient:
    from ..kafka_connect import ConnectClient

    with usage_of("--connect-url"):
        return ConnectClient([each for each in urls.split(",") if each.strip()], timeout_s=timeout_s)


def _document(status: ConnectorStatus) -> dict[str, Any]:
    return {
        "name": status.name,
        "type": status.type,
        "state": status.state,
        "worker_id": status.worker_id,
        "trace": status.trace,
        "tasks": [
            {"id": task.id, "state": task.state, "worker_id": task.worker_id, "trace": task.trace}
            for task in status.tasks
        ],
    }


def _running(status: ConnectorStatus) -> str:
    from ..kafka_connect import RUNNING

    return f"{sum(task.state == RUNNING for task in status.tasks)}/{len(status.tasks)}"


def _judge(fail_on: FailOn | None, statuses: list[ConnectorStatus]) -> None:
    """End with the exit code 3, and a line on stderr for each connector in the state that --fail-on names."""
    from ..kafka_connect import plain

    bad = {}
    for each in statuses:
        if (failure := each.failure()) is not None:
            bad[each.name] = failure
        elif fail_on is FailOn.NOT_RUNNING and not each.is_running():
            bad[each.name] = each.in_words()
    if fail_on is None or not bad:
        return
    for name, why in bad.items():
        note(f"{plain(name)}: {why}")
    raise typer.Exit(_FAIL_ON_EXIT_CODE)


def _read(file: str, name: str) -> tuple[dict[str, str], str | None]:
    """Read a connector's configuration and its initial state (None: not given) from a JSON file, which has the body of
    Connect's POST /connectors or of PUT /connectors/NAME/config."""
    if file == "-":
        raw = sys.stdin.buffer.read(_FILE_BYTES_MAX + 1)
    else:
        with open(file, "rb") as opened:
            raw = opened.read(_FILE_BYTES_MAX + 1)
    if len(raw) > _FILE_BYTES_MAX:
        raise typer.BadParameter(
            f"{file}: is larger than {_FILE_BYTES_MAX:,} bytes, the maximum for a connector", param_hint="-f"
        )
    try:
        document = json.loads(raw, parse_int=str, parse_float=str)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"{file}: is not valid JSON ({error})", param_hint="-f") from None
    config = document.get("config", document) if isinstance(document, dict) else None
    if not isinstance(config, dict):
        raise typer.BadParameter(f"{file}: must be a JSON object of keys and values", param_hint="-f")
    unknown = sorted(document.keys() - _BESIDE_CONFIG) if config is not document else []
    if unknown:
        raise typer.BadParameter(f'{file}: has the unknown key {unknown[0]!r} beside "config"', param_hint="-f")
    initial_state = document.get("initial_state") if config is not document else None
    if initial_state is not None and initial_state not in _INITIAL_STATES:
        raise typer.BadParameter(
            f"{file}: initial_state {initial_state!r}: must be one of {', '.join(_INITIAL_STATES)}", param_hint="-f"
        )
    for named in (document.get("name", name), config.get("name", name)):
        if named != name:
            raise typer.BadParameter(
                f"{file}: has the name {named!r}, not {name!r}; use the same name as the command line", param_hint="-f"
            )
    return {key: _value(file, key, value) for key, value in config.items()}, initial_state


def _value(file: str, key: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value
    raise typer.BadParameter(f"{file}: the value of {key!r} must be a string, a number, true or false", param_hint="-f")
