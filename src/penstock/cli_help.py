"""What `--help` says beyond the arguments: examples, the variables that matter, and exit codes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from penstock import exit_codes
from penstock.settings.postgres import CAPTURE_SLOT, SHAPES_SLOT

POSTGRES: Final = ("PGHOST, PGUSER, PGDATABASE, …", "the server, by libpq's own variables")
_SLOT: Final = "REPLICATION_SLOT"
_LOGS: Final = ("PENSTOCK_LOG_FORMAT", "json, or console for a person's eyes")
_OPS: Final = ("OPS_HOST, OPS_PORT", "where health, metrics and the page listen (127.0.0.1, 8088)")
_OK: Final = exit_codes.OK
_FAILED: Final = exit_codes.FAILED
_BAD: Final = exit_codes.BAD_INPUT
_MEASURED: Final = {
    _OK: "measured",
    _FAILED: "a target was missed",
    _BAD: "a bad argument, or a program or package is missing",
}


class Help(NamedTuple):
    """Of one command."""

    examples: Sequence[tuple[str, str]]
    """What is typed behind `penstock`, and what for."""
    exits: Mapping[int, str]
    variables: Sequence[tuple[str, str]] = ()

    def epilog(self) -> str:
        """The text behind the arguments."""
        parts = [table("examples", [(f"penstock {line}".rstrip(), what) for line, what in self.examples])]
        if self.variables:
            parts.append(table("variables, from the environment or .env", self.variables))
        parts.append(table("exit codes", [(str(code), what) for code, what in self.exits.items()]))
        return "\n\n".join(parts)


HELP: Final[Mapping[str, Help]] = {
    "": Help(
        [
            ("init", "write .env and shapes.toml from a look at the database"),
            ("check", "what stands in the way of a capture, with the fix"),
            ("capture", "changes to Kinesis"),
            ("shapes --config shapes.toml", "Delta tables that equal Postgres"),
            ("status", "is it well?"),
        ],
        {**exit_codes.MEANINGS, 130: "ended by Ctrl-C (128 and the signal's number)"},
        [
            POSTGRES,
            ("AWS_REGION, KINESIS_STREAM", "where capture writes to"),
            ("NO_COLOR", "set: no colours on a terminal, either"),
        ],
    ),
    "capture": Help(
        [("capture", "run it twice: the second one is the standby")],
        {_OK: "told to stop, and everything read is delivered", _BAD: "a bad setting, or a taken ops port"},
        [
            POSTGRES,
            ("AWS_REGION, KINESIS_STREAM", "the stream; required"),
            (_SLOT, f"created if it is missing, never dropped ({CAPTURE_SLOT})"),
            ("KINESIS_MARKED_STREAM", "true: readers can restore whole transactions"),
            ("WAL2JSON_ADD_TABLES", "only these tables: schema.table,schema.*"),
            _OPS,
            _LOGS,
        ],
    ),
    "shapes": Help(
        [
            ("shapes --config shapes.toml", "copy the tables, then follow them"),
            ("shapes --config shapes.toml --once", "end when they have all that is there now"),
            ("shapes --config shapes.toml --resnapshot orders", "rebuild one table"),
            ("shapes --config shapes.toml --master local[4]", "with four cores"),
        ],
        {
            _OK: "told to stop, or --once is done",
            _FAILED: "--once: a shape stalls or is stopped",
            _BAD: "a bad setting, file or argument, or a taken ops port",
            exit_codes.ANOTHER_LEADS: exit_codes.MEANINGS[exit_codes.ANOTHER_LEADS],
            exit_codes.SPARK_GONE: exit_codes.MEANINGS[exit_codes.SPARK_GONE],
        },
        [
            POSTGRES,
            (_SLOT, f"created if it is missing, never dropped ({SHAPES_SLOT})"),
            ("LOG_DIR", "where changes wait; needed if the storage is no directory"),
            ("FLUSH_MAX_PARALLEL", "shapes that are flushed at once (4)"),
            _OPS,
            _LOGS,
        ],
    ),
    "verify": Help(
        [
            ("verify --config shapes.toml", "every table against Postgres, row by row"),
            ("verify --config shapes.toml --shape orders --show-values", "one, with the values that differ"),
            ("verify --config shapes.toml --json", "for programs"),
            ("verify --stream", "the marked stream that capture writes, folded"),
        ],
        {_OK: "equal", _FAILED: "they differ", _BAD: "it could not be compared"},
        [POSTGRES, (_SLOT, f"that of the shapes ({SHAPES_SLOT})")],
    ),
    "check": Help(
        [
            ("check", "for `penstock capture`"),
            ("check --config shapes.toml", "for `penstock shapes`"),
            ("check --json", "for programs"),
        ],
        {_OK: "nothing fails", _FAILED: "something does", _BAD: "a bad setting, file or argument"},
        [POSTGRES, ("AWS_REGION, KINESIS_STREAM", "the stream; required without --config")],
    ),
    "status": Help(
        [
            ("status", "the process on this machine; if none answers, what Postgres tells of a capture"),
            ("status --url http://10.0.0.7:8088", "another process"),
            ("status --config shapes.toml", "shapes, from Postgres, the registry and the tables alone"),
            ("status --config shapes.toml --from kinesis://shop", "the same, of shapes that read a stream"),
            ("status --watch", "again every 2 seconds"),
            ("status --json", "for programs; with --watch a line each time"),
        ],
        {_OK: "ready, or nothing wrong is seen", _FAILED: "not ready; the reasons", _BAD: "nobody answers"},
        [
            POSTGRES,
            (_SLOT, f"whose slot ({CAPTURE_SLOT}; with --config {SHAPES_SLOT})"),
            ("AWS_REGION", "that of the stream behind --from"),
            _OPS,
        ],
    ),
    "init": Help(
        [
            ("init", "write .env and shapes.toml here"),
            ("init --stream shop-changes --region eu-west-1", "with the stream that capture writes to"),
        ],
        {_OK: "written; what was there is kept", _BAD: "no answer from Postgres, or nothing to write"},
        [POSTGRES],
    ),
    "demo": Help(
        [
            ("demo", "a minute and a half, two proofs"),
            ("demo --stay", "then keep everything running, and say where the pages are"),
        ],
        {_OK: "proved", _FAILED: "something is missing or differs", _BAD: "a program or package is missing"},
    ),
    "bench": Help(
        [("bench capture --rounds 3", "capture"), ("bench shapes --only backlog,verify", "parts of shapes")],
        _MEASURED,
    ),
    "bench capture": Help(
        [
            ("bench capture", "everything, with an outage of ten minutes"),
            ("bench capture --rounds 3 --outage-minutes 0", "three rounds, and no outage"),
            ("bench capture --markdown table.md --plot memory.svg", "for the docs"),
        ],
        _MEASURED,
    ),
    "bench shapes": Help(
        [
            ("bench shapes", "all parts"),
            ("bench shapes --only backlog,verify --rounds 1", "two of them, once"),
            ("bench shapes --markdown table.md", "for the docs"),
        ],
        _MEASURED,
    ),
    "bench kinesis": Help(
        [
            ("bench kinesis", "all parts"),
            ("bench kinesis --only latency --commits 5", "one of them"),
        ],
        _MEASURED,
    ),
    "completion": Help(
        [
            ("completion bash >> ~/.bash_completion", "bash"),
            ('completion zsh > "${fpath[1]}/_penstock"', "zsh"),
            ("completion fish > ~/.config/fish/completions/penstock.fish", "fish"),
        ],
        {_OK: "printed", _BAD: "no such shell"},
    ),
}
"""By command, with all of its words; the program itself has no name."""


def table(heading: str, rows: Sequence[tuple[str, str]]) -> str:
    """Two columns below a heading."""
    width = max(len(left) for left, _ in rows)
    return "\n".join([f"{heading}:", *(f"  {left:<{width}}  {right}" for left, right in rows)])
