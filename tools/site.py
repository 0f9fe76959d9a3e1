"""Build the site: all pages of the repository, the command line, errors, the protocol, and the API from docstrings.

    tools/site.py                 build/site; read it with `python -m http.server -d build/site` (part of CI)
    tools/site.py sources         only MkDocs' input, in build/site-src

MkDocs and its plugins are installed into build/site-venv, in the versions of tools/site_requirements.txt. The build is
strict: it fails on a warning, and on a page that loads a script, style, font or picture from another host.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import diagrams

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "tools" / "site_requirements.txt"
SOURCES, BUILT, TOOLS = (ROOT / "build" / name for name in ("site-src", "site", "site-venv"))

#: A dictionary of pages outside of docs/, each with its place in the site.
OUTSIDE = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
#: A dictionary of section titles, each with its pages or folders. A test fails if a page of the site is in no section.
SECTIONS: dict[str, list[str]] = {
    "Start": ["index.md", "tutorial.md", "installing.md", "embedding.md", "glossary.md"],
    "Kafka": ["migrating.md", "kafka-clients.md", "frameworks.md", "registry.md", "kafka-compatibility.md"],
    "Programs": ["sdk"],
    "Command line": ["cli"],
    "Spark": ["spark.md", "spark-exactly-once.md", "spark-schemas.md", "spark-running.md"],
    "Pipelines": [
        "pipelines-choosing.md",
        "pipelines-running.md",
        "pipelines-clickstream.md",
        "pipelines-fraud.md",
        "pipelines-lake.md",
        "pipelines-cdc.md",
        "pipelines-logs.md",
        "pipelines-telemetry.md",
        "pipelines-orders.md",
        "pipelines-scaling.md",
        "pipelines-sql.md",
        "pipelines-quality.md",
        "pipelines-dead-letters.md",
        "pipelines-tables.md",
        "pipelines-writing.md",
        "pipelines-testing.md",
    ],
    "Operations": [
        "operations",
        "compose.md",
        "console.md",
        "security.md",
        "security-authentication.md",
        "security-acls.md",
        "security-attacks.md",
        "metrics.md",
        "alerts.md",
        "traces.md",
        "sizing.md",
        "tuning.md",
        "anti-patterns.md",
    ],
    "How it works": [
        "architecture.md",
        "life-of-a-record.md",
        "replication.md",
        "invariants.md",
        "invariants-transactions.md",
        "invariants-registry.md",
        "decisions",
    ],
    "Performance": ["performance"],
    "Trust": [
        "simulation.md",
        "simulation-brokers.md",
        "simulation-transactions.md",
        "faults.md",
        "faults-transactions.md",
        "soak.md",
    ],
    "Reference": ["reference", "api"],
    "Project": ["contributing.md", "releasing.md", "changelog.md"],
}
#: A dictionary of API pages, each with its contents.
API = {
    "producers": ["headrace.producer.blocking.Producer", "headrace.producer.aio.AsyncProducer"],
    "consumers": ["headrace.consumer.blocking.Consumer", "headrace.consumer.aio.AsyncConsumer"],
    "admin": ["headrace.admin.blocking.Admin"],
    "models": ["headrace.models", "headrace.cluster_models", "headrace.group_models", "headrace.transaction_models"],
    "fetch": ["headrace.fetch"],
    "local-cluster": ["headrace_tools.local.cluster"],
}
_CONFIG = """\
site_name: Headrace
docs_dir: {sources}
site_dir: {built}
use_directory_urls: false
theme:
  name: material
  font: false
  features: [navigation.indexes, navigation.top, content.code.copy]
  palette:
    - {{media: "(prefers-color-scheme: light)", scheme: default, primary: teal}}
    - {{media: "(prefers-color-scheme: dark)", scheme: slate, primary: teal}}
extra: {{generator: false}}
validation: {{anchors: warn, unrecognized_links: warn, absolute_links: warn, omitted_files: warn}}
markdown_extensions:
  - tables
  - toc: {{permalink: true}}
  - pymdownx.highlight
  - pymdownx.superfences
plugins:
  - search
  - mkdocstrings:
      handlers:
        python:
          paths: [{paths}]
          options:
            docstring_style: null
            show_source: false
            show_root_heading: true
            heading_level: 2
            filters: ["!^_"]
            show_signature_annotations: true
            allow_inspection: false
nav: {nav}
"""


# -- pages for MkDocs -------------------------------------------------------------------------------------------------


def home(path: str) -> str | None:
    """The place of a repository file in the site; None if the site does not have the file."""
    if path in OUTSIDE:
        return OUTSIDE[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else None


def linked(text: str, page: str) -> str:
    """Change the links in ``text`` of a repository page to places in the site. A link to a file outside of the site
    becomes plain text."""

    def one(found: re.Match[str]) -> str:
        label, target = found[1], found[2]
        if "://" in target or target.startswith("#"):
            return found[0]
        path, _, anchor = target.partition("#")
        there = home(os.path.normpath(os.path.join(os.path.dirname(page), path)))
        if there is None:
            return label
        here = home(page)
        assert here is not None
        return f"[{label}]({os.path.relpath(there, os.path.dirname(here) or '.')}{'#' + anchor if anchor else ''})"

    parts = re.split(r"(```.*?```|`[^`\n]*`)", text, flags=re.DOTALL)
    joined, codes = "", []
    for part in parts:  # a link's label may contain code, and code may look like a link
        if part.startswith("`"):
            codes.append(part)
            joined += f"\0{len(codes) - 1}\0"
        else:
            joined += part
    joined = re.sub(r"\[([^\]]*)\]\(([^)\s]+)\)", one, joined)
    return re.sub(r"\0(\d+)\0", lambda found: codes[int(found[1])], joined)


def as_python_markdown(text: str) -> str:
    """Add white space that Python's Markdown needs, but GitHub's Markdown does not: blank lines before lists, four
    spaces in items.

    The second paragraph of a list item needs the four spaces in its first line, and a blank line before the next item.
    """
    lines: list[str] = []
    fenced = in_second = False
    for line in text.splitlines():
        is_item = re.match(r" {0,3}([*-]|\d+\.) ", line) is not None
        before = lines[-1] if lines else ""
        starts = is_item and not fenced and before.strip()
        if starts and (in_second or not re.match(r"\s|[*-] |\d+\. |#|\|", before)):
            lines.append("")
        begins_second = not before and not fenced and re.match(r"  \S", line) is not None
        in_second = bool(line) and not is_item and (in_second or begins_second)
        fenced ^= line.lstrip().startswith("```")
        lines.append(f" {line}" if re.match(r" {3}\S", line) else f"  {line}" if begins_second else line)
    return "\n".join(lines) + "\n"


def written() -> Iterator[tuple[str, str]]:
    """(path in the site, text) of each page in the repository, including generated pages in docs/."""
    for page in [*OUTSIDE, *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md")))]:
        there = home(page)
        assert there is not None
        yield there, as_python_markdown(diagrams.drawn(linked((ROOT / page).read_text(encoding="utf-8"), page)))


# -- generated references ---------------------------------------------------------------------------------------------


def errors_page() -> str:
    from headrace_core import errors

    classes = {
        each.number: each
        for each in vars(errors).values()
        if inspect.isclass(each) and issubclass(each, errors.HeadraceError) and "code" in vars(each)
    }
    lines = [
        "# Errors",
        "",
        "Generated from `headrace_core.errors`. Each code is stable: scripts may match on it.",
        "Numbers below 1000 are Kafka's.",
        "",
    ]
    lines += ["| code | number | class | retriable | means |", "|---|---|---|---|---|"]
    for number, each in sorted(classes.items()):
        what = " ".join((each.__doc__ or "").strip().split("\n\n")[0].split()).replace("|", "\\|")
        retriable = "yes" if each.retriable else "no"
        lines.append(f"| `{each.code}` | {number} | `{each.__name__}` | {retriable} | {what} |")
    return "\n".join(lines) + "\n"


def protocol_page() -> str:
    lines = ["# The protocol", "", "Services of `headrace.v1`, generated from the comments in `protos/`.", ""]
    for path in sorted((ROOT / "protos" / "src" / "headrace_protos" / "v1").glob("*.proto")):
        comment: list[str] = []
        for line in path.read_text(encoding="utf-8").splitlines():
            if (found := re.match(r"\s*// ?(.*)$", line)) is not None:
                comment.append(found[1])
                continue
            if (found := re.match(r"service (\w+)", line)) is not None:
                lines += [f"## {found[1]}", "", f"`{path.name}`. {' '.join(comment)}", ""]
            elif (found := re.match(r"\s+rpc (\w+)\((.+?)\) returns \((.+?)\)", line)) is not None:
                call = f"### {found[1]}", "", f"`({found[2]})` → `({found[3]})`", "", " ".join(comment), ""
                lines += [each.replace("<", "\\<") if not each.startswith("`") else each for each in call]
            comment = []
    return "\n".join(lines) + "\n"


def command_line_page() -> str:
    import typer

    from headrace_tools.cli.root import build

    lines = [
        "# Every command",
        "",
        "Generated from the help of each command: `headrace COMMAND --help` shows the same.",
        "",
    ]

    def add(command: Any, name: str) -> None:
        if hasattr(command, "commands"):
            for each in sorted(command.commands):
                add(command.commands[each], f"{name} {each}")
            return
        help_text = inspect.cleandoc(command.help or "").replace("\b\n", "")
        lines.extend([f"## {name}", "", "```text", help_text, "```", ""])
        rows = []
        for each in command.params:
            flags = ", ".join(f"`{flag}`" for flag in (*each.opts, *each.secondary_opts)) or f"`{each.name}`"
            what = " ".join((getattr(each, "help", None) or "").split()).replace("|", "\\|").replace("<", "\\<")
            rows.append(f"| {flags} | {what} |")
        if rows:
            lines.extend(["| argument | |", "|---|---|", *rows, ""])

    add(typer.main.get_command(build(())), "headrace")
    return "\n".join(lines) + "\n"


def api_pages() -> Iterator[tuple[str, str]]:
    for name, objects in API.items():
        title = name.replace("-", " ").capitalize()
        yield f"api/{name}.md", f"# API: {title}\n\n" + "".join(f"::: {each}\n\n" for each in objects)


def generated() -> Iterator[tuple[str, str]]:
    yield "reference/errors.md", errors_page()
    yield "reference/protocol.md", protocol_page()
    yield "reference/commands.md", command_line_page()
    yield from api_pages()


# -- the site ---------------------------------------------------------------------------------------------------------


def navigation(pages: list[str]) -> list[dict[str, list[str]]]:
    """The pages of the site in their sections. The pages of a folder are sorted by name, with its README first."""
    found = []
    for title, members in SECTIONS.items():
        inside = [
            page
            for member in members
            for page in sorted(pages, key=lambda each: (not each.endswith("README.md"), each.removesuffix(".md")))
            if page == member or page.startswith(f"{member}/")
        ]
        found.append({title: inside})
    return found


def write_sources() -> None:
    shutil.rmtree(SOURCES, ignore_errors=True)
    pages = dict([*written(), *generated()])
    for path, text in pages.items():
        (SOURCES / path).parent.mkdir(parents=True, exist_ok=True)
        (SOURCES / path).write_text(text, encoding="utf-8")
    shutil.copytree(ROOT / "docs" / "pictures", SOURCES / "pictures")
    paths = ", ".join(str(ROOT / path) for path in ("clients/python/src", "clients/tools/src", "core/src"))
    config = _CONFIG.format(sources=SOURCES, built=BUILT, paths=paths, nav=json.dumps(navigation(list(pages))))
    (ROOT / "build" / "mkdocs.yml").write_text(config, encoding="utf-8")


class _Assets(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        is_asset = tag == "link" and (values.get("rel") or "") not in ("canonical", "next", "prev")
        if tag in ("script", "img", "iframe", "source", "video"):
            self.found.append(values.get("src") or "")
        elif is_asset:
            self.found.append(values.get("href") or "")


def external_assets(html: str) -> list[str]:
    """The resources that a page loads from another host: scripts, styles, pictures and frames, but not links."""
    parser = _Assets()
    parser.feed(html)
    return [each for each in parser.found if re.match(r"(\w+:)?//", each)]


def tools() -> Path:
    """Install MkDocs from tools/site_requirements.txt; returns the directory of the venv."""
    stamp, wanted = TOOLS / "stamp", hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != wanted:
        venv.create(TOOLS, clear=True, with_pip=True)
        pip = [
            str(TOOLS / "bin" / "pip"),
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--requirement",
            str(REQUIREMENTS),
        ]
        subprocess.run(pip, check=True)
        stamp.write_text(wanted)
    return TOOLS / "bin" / "mkdocs"


def main(arguments: list[str]) -> int:
    write_sources()
    if arguments == ["sources"]:
        return 0
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"}
    command = [
        str(tools()),
        "build",
        "--strict",
        "--quiet",
        "--clean",
        "--config-file",
        str(ROOT / "build" / "mkdocs.yml"),
    ]
    if (code := subprocess.run(command, env=environment, check=False).returncode) != 0:
        return code
    pages = sorted(BUILT.rglob("*.html"))
    loaded = [
        f"{page.relative_to(BUILT)}: {each}" for page in pages for each in external_assets(page.read_text("utf-8"))
    ]
    if loaded:
        print("site: pages load from other hosts:", *loaded, sep="\n  ", file=sys.stderr)
        return 1
    print(f"site: {len(pages)} pages; to read them: python -m http.server --directory {BUILT.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
