"""The shapes file: TOML, read into shapes or refused with a line for each mistake.

It is data and nothing in it is run here. What only the database or Spark can tell (a missing table or column,
no usable key, a `where` that doesn't parse) is checked by those who ask them.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from penstock.errors import PenstockError
from penstock.lake.storages.kinds import DIRECTORY, STORAGE_RULE, TABLES_RULE, kind_of
from penstock.model.relation import Relation
from penstock.model.shape import DEFAULT_FLUSH_INTERVAL_MS, NumericNan, Shape, ShapesFile, shape_line

TOP_KEYS: Final = ("storage", "registry", "shape")
SHAPE_KEYS: Final = ("name", "table", "where", "columns", "flush_interval_ms", "numeric_nan")
FLUSH_INTERVAL_MS: Final = (10, 86_400_000)

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,62}")
_NAME_RULE: Final = "use 1 to 63 of a-z, 0-9 and _, beginning with a letter"
_LONGEST_SHOWN: Final = 100


class ShapeFileError(PenstockError):
    """One or more mistakes in a shapes file, a readable line each."""

    @property
    def lines(self) -> list[str]:
        """The lines: the file's own keys first, then shape by shape."""
        return str(self).split("\n")


def load_shapes_file(path: Path) -> ShapesFile:
    """Read a shapes file; ShapeFileError names every mistake at once.

    A relative `storage` starts at the file's own directory: a service that is started from elsewhere must not
    begin another lake there.
    """
    top = _Section(str(path), "", _read(path))
    top.refuse_unknown_keys(TOP_KEYS, "the file has")
    directory = path.absolute().parent
    storage = _storage(top, directory)
    registry = _registry(top, storage, directory)
    sections = _shape_sections(top)
    _refuse_equal_names(top, sections)
    shapes = [_shape(section) for section in sections]
    if top.lines:
        raise ShapeFileError("\n".join(top.lines))
    return ShapesFile(str(path), storage, tuple(shapes), registry)


class _Section:
    """One table of the file, and the way to say what is wrong with it."""

    def __init__(
        self, file: str, place: str, values: Mapping[str, object], lines: list[str] | None = None
    ) -> None:
        self._file = file
        self._place = place
        self.values = values
        self.lines: list[str] = [] if lines is None else lines
        """Shared by all sections of a file."""

    def part(self, place: str, values: Mapping[str, object]) -> _Section:
        """A section of the same file."""
        return _Section(self._file, place, values, self.lines)

    def refuse(self, found: str, fix: str) -> None:
        """Note a mistake."""
        self.lines.append(shape_line(self._file, self._place, found, fix))

    def refuse_unknown_keys(self, known: Sequence[str], owner: str) -> None:
        """Note each key that means nothing here."""
        for key in self.values:
            if key in known:
                continue
            close = get_close_matches(key.lower(), known, n=1)
            if key == "storage":
                fix = "move it above the first [[shape]]"
            elif close:
                fix = f"did you mean {close[0]}?"
            else:
                fix = f"remove it; {owner} {', '.join(known)}"
            self.refuse(f"unknown key {_shown(key)}", fix)

    def text(self, key: str, example: str) -> str | None:
        """A key's text; None after noting that there is none."""
        if key not in self.values:
            self.refuse(f"{key} is missing", f"add {key} = {example}")
            return None
        value = self.values[key]
        if not isinstance(value, str):
            self.refuse(f"{key} is {_shown(value)}, not text", f"write {key} = {example}")
            return None
        return value


def _read(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_bytes().decode())
    except FileNotFoundError:
        found, fix = "no such file", "give the path of a shapes file"
    except OSError as error:
        found, fix = f"can't be read: {error.strerror}", "give the path of a file that this user may read"
    except UnicodeDecodeError:
        found, fix = "not UTF-8 text", "save it as UTF-8"
    except RecursionError:
        found, fix = "not a shapes file: nested too deeply", "take the nesting out"
    except ValueError as error:
        found, fix = f"not TOML: {error}", "correct it there"
    # Outside of the handlers: the cause would only repeat the line.
    raise ShapeFileError(shape_line(str(path), "", found, fix))


def _storage(top: _Section, directory: Path) -> str:
    storage = top.text("storage", '"./lake" above the first [[shape]]')
    if storage is None:
        return ""
    kind = kind_of(storage)
    if kind is not None and not kind.has_tables:
        return storage
    return _tables_at(top, "storage", storage, directory, STORAGE_RULE)


def _registry(top: _Section, storage: str, directory: Path) -> str | None:
    """A stream can't hold the registry, and a storage that can does."""
    kind = kind_of(storage)
    if kind is not None and not kind.has_tables:
        registry = top.text("registry", '"./registry", beside a storage that is a stream')
        return None if registry is None else _tables_at(top, "registry", registry, directory, TABLES_RULE)
    if "registry" in top.values:
        top.refuse("registry is set", "remove it: only a storage that is a stream has its registry elsewhere")
    return None


def _tables_at(top: _Section, key: str, value: str, directory: Path, rule: str) -> str:
    """A directory or a bucket."""
    kind = kind_of(value)
    if kind is None or not kind.has_tables:
        top.refuse(f"{key} is {_shown(value)}", rule)
        return ""
    return str(directory / value) if kind is DIRECTORY else value.rstrip("/")


def _shape_sections(top: _Section) -> list[_Section]:
    tables = top.values.get("shape", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        top.refuse("shape is not a list of tables", "begin each shape with [[shape]], in two brackets")
        return []
    if not tables:
        top.refuse("no shape", "add a [[shape]] with a name and a table")
    return [top.part(_place(number, table), table) for number, table in enumerate(tables, start=1)]


def _place(number: int, table: Mapping[str, object]) -> str:
    name = table.get("name")
    return f"shape {_shown(name)}" if isinstance(name, str) and name else f"shape number {number}"


def _shape(section: _Section) -> Shape:
    """The shape; where a mistake was noted, with a stand-in that nobody gets to see."""
    section.refuse_unknown_keys(SHAPE_KEYS, "a shape has")
    return Shape(
        name=_name(section),
        table=_table(section),
        where=_where(section),
        columns=_columns(section),
        flush_interval_ms=_flush_interval_ms(section),
        numeric_nan=_numeric_nan(section),
    )


def _name(section: _Section) -> str:
    name = section.text("name", '"orders"')
    if name is not None and not _NAME.fullmatch(name):
        section.refuse(f"name is {_shown(name)}", _NAME_RULE)
    return name or ""


def _table(section: _Section) -> Relation:
    example = '"public.orders"'
    text = section.text("table", example)
    if text is not None:
        try:
            return Relation.parse(text)
        except ValueError as error:
            section.refuse(f"table is {_shown(text)}, {error}", f"write table = {example}")
    return Relation("", "")


def _where(section: _Section) -> str | None:
    if "where" not in section.values:
        return None
    where = section.text("where", "\"status <> 'closed'\"")
    if where is not None and not where.strip():
        section.refuse("where is empty", "write a condition, or leave where out for every row")
    return where and where.strip()


def _columns(section: _Section) -> tuple[str, ...] | None:
    columns = section.values.get("columns")
    if columns is None:
        return None
    if not isinstance(columns, list) or not all(isinstance(column, str) for column in columns):
        section.refuse("columns is not a list of names", 'write columns = ["id", "status"]')
        return None
    if not columns or "" in columns:
        found = "columns holds an empty name" if columns else "columns is empty"
        section.refuse(found, "list the columns to keep, or leave columns out for all of them")
    for column, count in Counter(columns).items():
        if count > 1:
            section.refuse(f"columns holds {_shown(column)} {count} times", "name it once")
    for spellings in _equal_but_for_case(columns):
        section.refuse(
            f"columns holds {spellings}, equal but for case", "keep one: a Delta table can't hold both"
        )
    return tuple(columns)


def _flush_interval_ms(section: _Section) -> int:
    low, high = FLUSH_INTERVAL_MS
    value = section.values.get("flush_interval_ms", DEFAULT_FLUSH_INTERVAL_MS)
    if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
        return value
    section.refuse(f"flush_interval_ms is {_shown(value)}", f"write a whole number from {low} to {high}")
    return low


def _numeric_nan(section: _Section) -> NumericNan:
    value = section.values.get("numeric_nan", "stop")
    match value:
        case "stop" | "null":
            return value
    section.refuse(f"numeric_nan is {_shown(value)}", 'write "stop", or "null" to store null for NaN')
    return "stop"


def _refuse_equal_names(top: _Section, sections: Sequence[_Section]) -> None:
    found = [section.values.get("name") for section in sections]
    names = [name for name in found if isinstance(name, str)]
    for name, count in Counter(names).items():
        if count > 1:
            top.refuse(f"{count} shapes are named {_shown(name)}", "give each a name of its own")
    for spellings in _equal_but_for_case(names):
        top.refuse(f"shapes are named {spellings}, equal but for case", "give each a name of its own")


def _equal_but_for_case(words: Sequence[str]) -> list[str]:
    """Each group of different words that are one when case is left out, as text."""
    groups: dict[str, list[str]] = {}
    for word in dict.fromkeys(words):
        groups.setdefault(word.casefold(), []).append(word)
    return [" and ".join(map(_shown, group)) for group in groups.values() if len(group) > 1]


def _shown(value: object) -> str:
    """A value on one line, of a sane length, and without what may be a password in a URL."""
    if isinstance(value, str):
        bare = re.sub(r"//.*@", "//***@", value, flags=re.DOTALL)
        return repr(bare if len(bare) <= _LONGEST_SHOWN else bare[:_LONGEST_SHOWN] + "…")
    if isinstance(value, bool):
        return str(value).lower()
    # Python refuses to print a number that TOML may write in hexadecimal.
    if isinstance(value, float) or (isinstance(value, int) and value.bit_length() <= 64):
        return str(value)
    return {int: "a huge number", list: "a list", dict: "a table"}.get(type(value), "a date or a time")
