"""Who may import what (docs/architecture.md).

The rules are read off the source, so an import inside a function counts too. Only what stands under
`if TYPE_CHECKING:` is left out: it is never run.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "penstock"

LAYERS: tuple[tuple[str, ...], ...] = (
    (
        "errors",
        "clock",
        "fault_points",
        "abandonable",
        "durable",
        "exit_codes",
        "model",
        "finding",
        "terminal",
    ),
    ("decoding",),
    ("settings",),
    ("postgres", "changelog", "local"),
    ("status",),
    ("kinesis", "ops", "service"),
    ("lake",),
    ("sources",),
    ("capture", "shapes", "spark"),
    ("demo", "bench", "outside", "init", "completion", "cli_help"),
    ("check", "cli_arguments"),
    ("cli",),
    ("entry",),
    ("__main__",),
)
"""Each folder, or file at the top, may import what stands in a line above its own."""
WITHIN_A_LAYER = {("durable", "errors"), ("finding", "errors"), ("fault_points", "errors")}
PURE_FILES = (
    "model/lsn.py",
    "model/log_offset.py",
    "model/change.py",
    "model/relation.py",
    "decoding/decoder.py",
    "decoding/wal2json.py",
    "decoding/rows.py",
    "postgres/stream/protocol.py",
    "postgres/stream/walk.py",
    "capture/ack.py",
    "capture/intake.py",
    "kinesis/write/batcher.py",
    "kinesis/write/plan.py",
    "kinesis/aws/outcome.py",
    "kinesis/read/shards.py",
    "kinesis/read/stream_offset.py",
    "kinesis/read/look.py",
    "shapes/feed/collector.py",
    "shapes/pace/flush_plan.py",
    "shapes/pace/shape_plan.py",
    "shapes/pace/flush_tracker.py",
    "shapes/registry/decisions.py",
)
IMPURE_LIBRARIES = ("asyncio", "psycopg", "boto3", "botocore", "pyspark")
FOR_SPARK = ("lake/", "sources/", "spark/", "bench/", "shapes/app.py")
BEHIND_A_DOOR = {
    "penstock.decoding.wal2json": ("decoding/",),
    "penstock.decoding.key_scan": ("decoding/",),
    "penstock.lake.delta.shape_table": ("lake/delta/", "lake/storages/", "bench/"),
    "penstock.lake.jobs.shape_jobs": ("lake/",),
    "penstock.lake.jobs.verify_jobs": ("lake/",),
    "penstock.lake.stream.stream_jobs": ("lake/",),
    "prometheus_client": ("status/metrics.py", "status/shard_counts.py", "status/wait_histogram.py"),
}
"""What stands behind a door, and who may know it; the others ask at the door."""
MEMBERS = re.compile(r'"(?:action|columns|identity|pk)":')
MEMBER_NAMES = ("identity", "pk", "nextlsn")
"""Of a payload: of those that are words of other things too, only the JSON text gives it away."""
READ_PAYLOADS = ("decoding/", "kinesis/marked/", "demo/", "bench/")
"""The decoders; who writes records of our own; who reads a stream as its users do."""
BESIDE_THE_PATH = {
    "types, formats, ports and errors": (
        "model/",
        "errors.py",
        "decoding/decoder.py",
        "kinesis/write/event.py",
        "kinesis/write/ports.py",
        "kinesis/write/sending.py",
        "kinesis/aws/outcome.py",
        "lake/ports.py",
        "shapes/flushing/workplace.py",
        "shapes/pace/shape_plan.py",
        "lake/errors.py",
        "changelog/errors.py",
        "settings/",
    ),
    "what the table, the slot and the process are, not the change": (
        "clock.py",
        "fault_points.py",
        "durable.py",
        "status/",
        "postgres/catalog/",
        "postgres/connection.py",
        "postgres/slot/",
        "kinesis/aws/credentials.py",
        "kinesis/aws/session.py",
        "changelog/index.py",
        "changelog/offsets.py",
        "decoding/plugins.py",
        "lake/delta/",
        "lake/spark/",
        "shapes/registry/",
        "shapes/definition/",
    ),
    "those who watch, or hold the hand of, those who carry it": (
        "abandonable.py",
        "postgres/leader/",
        "kinesis/write/gate.py",
        "kinesis/write/outage.py",
        "kinesis/aws/timed_socket.py",
        "capture/commit_times.py",
        "shapes/feed/books.py",
        "shapes/feed/resnapshots.py",
        "shapes/pace/held.py",
    ),
    "for other changes: marked, undeliverable, in a large batch, of an altered or moved row or table": (
        "kinesis/marked/prefix.py",
        "kinesis/write/undeliverable.py",
        "decoding/key_scan.py",
        "decoding/widening.py",
        "lake/delta/retype.py",
        "lake/delta/rewritable.py",
        "lake/fold/inheritance.py",
        "lake/jobs/shared.py",
        "lake/jobs/bounds.py",
        "lake/jobs/difference.py",
        "shapes/following/",
    ),
    "a snapshot": (
        "postgres/snapshot/",
        "lake/jobs/snapshot_source.py",
        "shapes/flushing/cut.py",
        "shapes/flushing/copy_watch.py",
    ),
}
"""Files that docs/architecture.md doesn't count where it follows an INSERT."""
NOT_FOR_CAPTURE = ("pyspark", "moto", "rich")


parsed = cache(ast.parse)
"""By the text: many rules read the same files."""


def runtime_nodes(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from runtime_nodes(child)


def imports_of(file: Path, root: Path) -> set[str]:
    """Dotted names that a file imports. `from a import b` gives `a` and `a.b`: b may be a module."""
    package = ["penstock", *file.relative_to(root).parent.parts]
    names = set()
    for node in runtime_nodes(parsed(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names |= {base} | {f"{base}.{alias.name}" for alias in node.names}
    return names


def file_of(name: str, root: Path) -> Path | None:
    """The file of one of our own modules; None for anything else."""
    first, *rest = name.split(".")
    if first != "penstock":
        return None
    place = root.joinpath(*rest)
    candidates = (place.with_suffix(".py"), place / "__init__.py")
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def reachable(file: Path, root: Path) -> dict[str, Path]:
    """All that a file imports, itself or through our own modules, with the file that does it."""
    found: dict[str, Path] = {}
    seen = {file}
    waiting = [file]
    while waiting:
        current = waiting.pop()
        for name in sorted(imports_of(current, root) - found.keys()):
            found[name] = current
            own = file_of(name, root)
            if own is not None and own not in seen:
                seen.add(own)
                waiting.append(own)
    return found


def is_part_of(name: str, library: str) -> bool:
    return name == library or name.startswith(f"{library}.")


def violations(root: Path) -> list[str]:
    """A line for each broken rule."""
    return [
        *spark_outside_its_place(root),
        *impure_pure_files(root),
        *imports_upwards(root),
        *imports_past_a_door(root),
        *payloads_read_past_the_decoder(root),
        *(f"folders in a circle: {' -> '.join(circle)}" for circle in circles(folder_graph(root))),
    ]


def spark_outside_its_place(root: Path) -> Iterator[str]:
    for file in sorted(root.rglob("*.py")):
        place = file.relative_to(root).as_posix()
        if place.startswith(FOR_SPARK):
            continue
        if any(is_part_of(name, "pyspark") for name in imports_of(file, root)):
            yield f"{place} imports pyspark"


def imports_upwards(root: Path) -> Iterator[str]:
    """Imports that don't go down the layers."""
    layer_of = {name: number for number, names in enumerate(LAYERS) for name in names}
    for file, other in own_imports(root):
        top, other_top = (path.relative_to(root).parts[0].removesuffix(".py") for path in (file, other))
        if top == other_top or other_top == "__init__" or (top, other_top) in WITHIN_A_LAYER:
            continue
        if top not in layer_of:
            yield f"{top} is in no layer"
        elif layer_of[top] <= layer_of.get(other_top, len(LAYERS)):
            yield f"{file.relative_to(root)} imports {other_top}; {top} is not above it"


def imports_past_a_door(root: Path) -> Iterator[str]:
    for file in sorted(root.rglob("*.py")):
        place = file.relative_to(root).as_posix()
        for name in sorted(imports_of(file, root) & BEHIND_A_DOOR.keys()):
            if not place.startswith(BEHIND_A_DOOR[name]):
                yield f"{place} imports {name}, which is for {' '.join(BEHIND_A_DOOR[name])} alone"


def payloads_read_past_the_decoder(root: Path) -> Iterator[str]:
    for file in sorted(root.rglob("*.py")):
        place = file.relative_to(root).as_posix()
        if place.startswith(READ_PAYLOADS):
            continue
        for node in ast.walk(parsed(file.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
                text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
                if text in MEMBER_NAMES or MEMBERS.search(text):
                    yield f"{place}, line {node.lineno}: {text!r} is a decoder's to know"


def own_imports(root: Path) -> Iterator[tuple[Path, Path]]:
    """Each file with each of our own files that it imports."""
    for file in sorted(root.rglob("*.py")):
        for other in sorted({own for name in imports_of(file, root) if (own := file_of(name, root))}):
            # A package's own file comes along with every import from it.
            if other != file and other.name != "__init__.py":
                yield file, other


def folder_graph(root: Path) -> dict[str, set[str]]:
    """Which folders each folder knows; a file at the top stands for itself."""
    graph: dict[str, set[str]] = {}
    for file, other in own_imports(root):
        folder, known = (_folder(path, root) for path in (file, other))
        if folder != known:
            graph.setdefault(folder, set()).add(known)
    return graph


def _folder(file: Path, root: Path) -> str:
    place = file.relative_to(root)
    return place.stem if len(place.parts) == 1 else place.parent.as_posix()


def circles(graph: dict[str, set[str]]) -> Iterator[list[str]]:
    """A way from a folder back to itself, for each that has one."""
    for start in sorted(graph):
        ways = [[start, known] for known in sorted(graph[start])]
        seen: set[str] = set()
        while ways:
            way = ways.pop(0)
            if way[-1] == start:
                yield way
                break
            if way[-1] not in seen:
                seen.add(way[-1])
                ways += [[*way, known] for known in sorted(graph.get(way[-1], ()))]


def impure_pure_files(root: Path) -> Iterator[str]:
    for place in PURE_FILES:
        file = root / place
        if file.parent.is_dir() and not file.is_file():
            yield f"{place} is listed as pure and doesn't exist"
        elif file.is_file():
            yield from impure_imports(file, root)


def impure_imports(file: Path, root: Path) -> Iterator[str]:
    for library in IMPURE_LIBRARIES:
        culprits = {by for name, by in reachable(file, root).items() if is_part_of(name, library)}
        for culprit in sorted(culprits):
            through = "" if culprit == file else f" through {culprit.relative_to(root)}"
            yield f"{file.relative_to(root)} imports {library}{through}"


def loaded_by_capture(import_path: Path) -> list[str]:
    """What `penstock capture` loads of the libraries that it must do without.

    structlog loads rich wherever it finds it. That is forgotten first, so what is found is our own doing.
    """
    program = (
        "import sys, structlog\n"
        "for name in [name for name in sys.modules if name.split('.')[0] == 'rich']: del sys.modules[name]\n"
        "import penstock.cli, penstock.capture.app\n"
        f"print(*[name for name in {NOT_FOR_CAPTURE!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(import_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_our_source_keeps_the_rules() -> None:
    assert violations(SOURCE) == []


@pytest.mark.parametrize("begins", ["**One INSERT, from the socket", "**The same INSERT, into"])
def test_nobody_on_the_path_of_a_change_is_left_out(begins: str) -> None:
    page = (SOURCE.parents[1] / "docs" / "architecture.md").read_text()
    path = set(re.findall(r"`([\w/]+\.py)`", page.partition(begins)[2].partition("\n\n")[0]))
    beside = tuple(place for places in BESIDE_THE_PATH.values() for place in places)
    named = {
        f"{file.relative_to(SOURCE)} imports {place}"
        for file, other in own_imports(SOURCE)
        if file.relative_to(SOURCE).as_posix() in path
        and (place := other.relative_to(SOURCE).as_posix()) not in path
        and not place.startswith(beside)
    }
    assert named == set()


def test_capture_starts_without_spark_moto_and_rich() -> None:
    assert loaded_by_capture(SOURCE.parent) == []


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A small tree that keeps every rule."""
    root = tmp_path / "penstock"
    for place in (*PURE_FILES, "capture/app.py", "shapes/app.py", "lake/spark/spark_session.py", "cli.py"):
        file = root / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("import json\n")
        (file.parent / "__init__.py").touch()
    (root / "lake/spark/spark_session.py").write_text("import pyspark\n")
    (root / "shapes/app.py").write_text("from pyspark.sql import SparkSession\n")
    (root / "cli.py").write_text("from penstock.capture import app\n")
    (root / "model/lsn.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import psycopg\nimport psycopgish\n"
    )
    return root


def test_a_planted_tree_that_keeps_the_rules_passes(planted: Path) -> None:
    assert violations(planted) == []
    assert loaded_by_capture(planted.parent) == []


@pytest.mark.parametrize(
    ("place", "code", "imported"),
    [
        ("capture/reader.py", "import pyspark", "pyspark"),
        ("cli.py", "def main():\n    from pyspark.sql import types", "pyspark"),
        ("shapes/flushing/work.py", "from pyspark import sql", "pyspark"),
        ("model/log_offset.py", "import asyncio", "asyncio"),
        ("postgres/stream/protocol.py", "from psycopg import pq", "psycopg"),
        ("kinesis/write/batcher.py", "import botocore.session as s", "botocore"),
        ("kinesis/aws/outcome.py", "try:\n    import boto3\nexcept ImportError: ...", "boto3"),
        (
            "postgres/slot/state.py",
            "import penstock.capture.app",
            "capture; postgres is not above it",
        ),
        (
            "kinesis/write/client.py",
            "from penstock.capture import app",
            "capture; kinesis is not above it",
        ),
        ("shapes/feed/x.py", "from ...capture.app import run", "capture; shapes is not above it"),
        ("model/x.py", "from penstock.decoding import decoder", "decoding; model is not above it"),
        (
            "shapes/definition/x.py",
            "from penstock.decoding.wal2json import Wal2Json",
            "penstock.decoding.wal2json, which is for decoding/ alone",
        ),
        (
            "postgres/catalog/x.py",
            "from penstock.decoding import wal2json",
            "penstock.decoding.wal2json, which is for decoding/ alone",
        ),
        (
            "status/x.py",
            "from prometheus_client import Gauge",
            "prometheus_client, which is for"
            " status/metrics.py status/shard_counts.py status/wait_histogram.py alone",
        ),
    ],
)
def test_a_planted_break_is_named(planted: Path, place: str, code: str, imported: str) -> None:
    (planted / place).parent.mkdir(parents=True, exist_ok=True)
    (planted / place).write_text(code + "\n")
    assert violations(planted) == [f"{place} imports {imported}"]


@pytest.mark.parametrize(
    ("code", "text"),
    [("KEY = 'pk'", "pk"), ("""IS_Q = b'{"action":"Q"'""", '{"action":"Q"')],
)
def test_a_planted_look_into_a_payload_is_named(planted: Path, code: str, text: str) -> None:
    (planted / "lake/x.py").write_text(code + "\n")
    (planted / "decoding/x.py").write_text(code + "\n")
    assert violations(planted) == [f"lake/x.py, line 1: {text!r} is a decoder's to know"]


def test_an_impure_import_is_found_through_our_own_modules(planted: Path) -> None:
    (planted / "capture/queue.py").write_text("import asyncio\n")
    (planted / "capture/__init__.py").write_text("from . import queue\n")
    (planted / "capture/ack.py").write_text("import penstock.capture\n")
    assert violations(planted) == ["capture/ack.py imports asyncio through capture/queue.py"]


def test_a_circle_inside_of_a_layer_is_named(planted: Path) -> None:
    for place, other in (("feed/a", "pace.b"), ("pace/b", "registry.c"), ("registry/c", "feed.a")):
        (planted / f"shapes/{place}.py").write_text(f"import penstock.shapes.{other}\n")
    way = ["shapes/feed", "shapes/pace", "shapes/registry"]
    assert violations(planted) == [
        f"folders in a circle: {' -> '.join([*way[start:], *way[: start + 1]])}" for start in range(3)
    ]


def test_a_pure_file_that_moved_is_named(planted: Path) -> None:
    (planted / "capture/ack.py").unlink()
    assert violations(planted) == ["capture/ack.py is listed as pure and doesn't exist"]


@pytest.mark.parametrize("library", NOT_FOR_CAPTURE)
def test_a_library_that_capture_loads_is_named(planted: Path, library: str) -> None:
    (planted.parent / library).mkdir()
    (planted.parent / library / "__init__.py").touch()
    (planted / "capture/queue.py").write_text(f"import {library}\n")
    (planted / "capture/app.py").write_text("import penstock.capture.queue\n")
    assert loaded_by_capture(planted.parent) == [library]


if __name__ == "__main__":
    for folder, known in sorted(folder_graph(SOURCE).items()):
        print(f"{folder:<20} {' '.join(sorted(known))}")
