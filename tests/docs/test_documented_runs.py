"""The pages' blocks of shell and Python, run in their order as they are written, on one cluster of three brokers.

What differs from what a reader does: the address, which is free here, and that what would go on for ever looks once.
A block that says ``not run`` says why, and who runs it instead.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import documented_pages as pages
import pytest

from headrace.local import ports

pytestmark = [pytest.mark.timeout(480)]

#: What is typed -> what is run: views that never end look once. The doctor may find a fault of this machine's, and a
#: move of twenty records is done before it can be cancelled.
ONCE = (
    (r" --watch\b", ""),
    (r"^headrace top\b", "headrace top --once -i 0.2"),
    (r"^(headrace doctor[^#\n]*)", r"\1 || [ $? -eq 1 ] "),
    (r"^(headrace partitions reassign --cancel[^#\n]*)", r"\1 || [ $? -eq 1 ] "),
)


@dataclass(frozen=True)
class Site:
    """A directory where pages are followed, and the address of the cluster in it."""

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
        """Run it; what it printed. A failure shows all, with the last `@@ page:line` for the block that failed."""
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
            with contextlib.suppress(ProcessLookupError):  # whatever it has left in the background
                os.killpg(process.pid, signal.SIGKILL)
        assert process.returncode == 0, f"exit code {process.returncode}\n{err}\n{out}"
        assert "Traceback" not in err, err
        return out

    def follow(self, page: str, *, but: Callable[[pages.Block], bool] = lambda block: False) -> str:
        """Run the blocks of a page, one shell for all of them; what they printed."""
        script = []
        for block in pages.blocks(page):
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


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Three brokers in ``./cluster``, a topic ``orders`` with records, a group ``billing`` that has read them."""
    port = ports.pick(1)[0]
    made = Site(tmp_path_factory.mktemp("pages"), f"127.0.0.1:{port}")
    try:
        made.bash(
            f"headrace up --data ./cluster --port {port} -d\n"
            "headrace topics create orders -p 6\n"
            "seq 20 | sed 's/.*/&:order &/' | headrace produce -t orders -K :\n"
            "headrace consume -q -G billing orders -e"
        )
        yield made
    finally:
        made.bash("headrace down --data ./cluster --delete")


def test_the_page_of_the_command_line(site: Site) -> None:
    told = site.follow("docs/cli.md")
    assert "bootstrap.servers=stage-1:9095,stage-2:9095" in told
    assert "local counts unless another one is named" in told
    assert (site.directory / "before.csv").read_text().count("orders,") == 6
    assert not list((site.directory / "profiles").glob("staging*"))


def test_the_page_of_operations(site: Site) -> None:
    told = site.follow("docs/operations.md", but=about_disks)
    assert re.search(r"^BROKER +ADDRESS", told, re.MULTILINE)
    assert "all of it sound" in told


def about_disks(block: pages.Block) -> bool:
    """These are followed on a broker that has several."""
    return block.heading in ("Disks", "A broker with several disks")


def test_a_broker_with_several_disks_as_the_page_says(tmp_path: Path) -> None:
    disks = [block for block in pages.blocks("docs/operations.md") if about_disks(block)]
    kinds = [(block.heading, block.language) for block in disks]
    several = "A broker with several disks"
    assert kinds == [("Disks", "sh"), *((several, kind) for kind in ("properties", "properties", "sh", "sh", "sh"))]
    moves, controller, broker, format_both, start_both, format_new = [block.text for block in disks]
    free = dict(zip(("9094", "19094", "9095", "19095"), map(str, ports.pick(4)), strict=True))

    def here(text: str) -> str:
        text = re.sub(r"\b(9094|19094|9095|19095)\b", lambda found: free[found[1]], text)
        return re.sub(r"/disk(\d)", lambda found: str(tmp_path / f"disk{found[1]}"), text)

    for name, text in (("controller", controller), ("broker", broker)):
        (tmp_path / f"{name}.properties").write_text(here(text))
    start_controller, start_broker = here(start_both).splitlines()
    site = Site(tmp_path, f"127.0.0.1:{free['9095']}")
    told = site.bash(
        "trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT\n"
        "served() { for _ in $(seq 100); do headrace log-dirs describe && return; done 2>/dev/null; false; }\n"
        f"{here(format_both)}"
        f"{start_controller} >controller.log 2>&1 &\n{start_broker} >broker.log 2>&1 & BROKER=$!\n"
        f"served\nheadrace topics create orders -p 2 -r 1\n{here(moves)}"
        "echo 'one more disk'\nkill $BROKER; wait $BROKER || true\n"
        f"sed -i 's|^log.dirs=.*|&,{tmp_path}/disk3/headrace/broker|' broker.properties\n"
        f"{here(format_new)}{start_broker} >broker.log 2>&1 &\nserved\n"
    )
    before, after = told.split("one more disk")
    assert f"moved orders-0 on broker 1 to {tmp_path}/disk2" in before
    assert f"{tmp_path}/disk3/headrace/broker" not in before
    assert f"{tmp_path}/disk3/headrace/broker" in after


def test_the_page_for_those_who_come_from_kafka(site: Site) -> None:
    told = site.follow("docs/migrating.md")
    assert "b'one crate'" in told


def test_the_page_of_a_cluster_in_your_tests(tmp_path: Path) -> None:
    found = [block for block in pages.blocks("docs/embedding.md") if not block.not_run]
    assert [block.language for block in found] == ["python", "ini", "python", "python"]
    first, configuration, own_cluster, without_pytest = [block.text for block in found]
    (tmp_path / "test_pasted.py").write_text(f"import pytest\n\n{first}\n\n{own_cluster}")
    (tmp_path / "pytest.ini").write_text(configuration)
    (tmp_path / "pasted.py").write_text(without_pytest)
    site = Site(tmp_path, "")
    told = site.bash("python -m pytest -q -p no:cacheprovider test_pasted.py\npython pasted.py")
    assert "2 passed" in told


def test_the_pictures_are_what_our_commands_show_of_a_cluster(site: Site, tmp_path: Path) -> None:
    tool = pages.ROOT / "tools" / "pictures.py"
    site.bash(f"python {tool} --bootstrap {site.address} --to {tmp_path}")
    shown = {"top": "UNDER\xa0REPLICATED", "topics": "LEADER\xa0EPOCH", "groups": "LOG\xa0END\xa0OFFSET"}
    for name, heading in shown.items():
        words = "".join(ElementTree.parse(tmp_path / f"{name}.svg").getroot().itertext())
        assert heading in words
        assert "orders" in words
        assert f"headrace\xa0{name}" in words
    committed = pages.ROOT / "docs" / "pictures"
    assert {path.stem for path in committed.iterdir()} == set(shown)
    pages_text = "".join(path.read_text() for path in [pages.ROOT / "README.md", *(pages.ROOT / "docs").glob("*.md")])
    for path in committed.iterdir():
        text = path.read_text()
        assert re.findall(r"https?://[^\"]+", text) == ["http://www.w3.org/2000/svg"], "a picture calls nobody"
        assert len(text) < 40_000
        assert f"pictures/{path.name})" in pages_text, "a picture that no page shows"


@pytest.mark.spark
def test_the_blocks_of_spark(site: Site, tmp_path: Path) -> None:
    """In one session: what the page reads from, and writes, is made here."""
    (first_minutes,) = [block for block in pages.blocks("README.md") if "headrace_spark" in block.text]
    script = [first_minutes.text]
    found = [block for block in pages.blocks("docs/spark.md") if not block.not_run]
    for block in found:
        text = block.text.replace("/data/checkpoints", str(tmp_path / "checkpoints"))
        if block.language == "python":
            script.append(re.sub(r"^\(stream\.", "query = (stream.", text, flags=re.MULTILINE))
        else:
            script.append(f"subprocess.run({text!r}, shell=True, check=True)")
        if "spark.dataSource.register" in text:
            script.append("frame = spark.createDataFrame([('a', 'one')], ['key', 'value'])")
        if "hourly-report" in text and block.language == "python":
            script.append(
                "stream = orders.select('key', 'value')\n"
                "stream.writeStream.format('noop').trigger(availableNow=True)"
                f".option('checkpointLocation', {str(tmp_path / 'noop')!r}).start().awaitTermination()"
            )
        if "(stream." in text:
            script.append("query.processAllAvailable(); query.stop()")
    program = "import subprocess\n" + "\n".join(script).replace("127.0.0.1:9095", site.address)
    (tmp_path / "page.py").write_text(program)
    told = site.bash(f"python {tmp_path / 'page.py'}\nheadrace consume -t alarms -e -q\nheadrace topics list")
    assert "order 7" in told
    assert re.search(r"^hourly-report +orders", told, re.MULTILINE)
    assert re.search(r"^one$", told, re.MULTILINE)
    assert "orders-copy" in told
