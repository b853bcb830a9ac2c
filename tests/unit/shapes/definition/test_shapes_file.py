"""The shapes file: what it means, and the exact line for each mistake in it."""

from __future__ import annotations

import pickle
import re
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.model.relation import Relation
from penstock.model.shape import Shape, ShapesFile, definition_hash
from penstock.shapes.definition.shapes_file import ShapeFileError, load_shapes_file

ORDERS = Shape("orders", Relation("public", "orders"))


REGISTRY_FIX = "Fix: name a directory or s3a://bucket/path, without credentials"
STORAGE_FIX = f"{REGISTRY_FIX}; or kinesis://stream, for changes instead of tables"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "shapes.toml"


def load(file: Path, text: str) -> ShapesFile:
    file.write_text(text)
    return load_shapes_file(file)


def refusals(file: Path) -> list[str]:
    """The lines about a file, each without the file's name, which they all begin with."""
    with pytest.raises(ShapeFileError) as caught:
        load_shapes_file(file)
    start = f"{file}: "
    assert all(line.startswith(start) for line in caught.value.lines)
    return [line.removeprefix(start) for line in caught.value.lines]


def refusals_of(file: Path, text: str) -> list[str]:
    file.write_text(text)
    return refusals(file)


def shape_with(*lines: str) -> str:
    """A file with one shape, good but for these lines; a line replaces the key that it sets."""
    keys = {"name": 'name = "orders"', "table": 'table = "public.orders"'}
    for line in lines:
        keys[line.partition("=")[0].strip()] = line
    return "\n".join(['storage = "/lake"', "[[shape]]", *keys.values()])


class TestStreams:
    """A storage that is a stream has its registry elsewhere."""

    SHAPE = '[[shape]]\nname = "orders"\ntable = "public.orders"\n'

    @pytest.mark.parametrize("storage", ["kinesis://orders", "kinesis://my.st_ream-1?marks=marks"])
    def test_the_registry_is_beside_it(self, file: Path, storage: str) -> None:
        loaded = load(file, f'storage = "{storage}"\nregistry = "./kept"\n{self.SHAPE}')
        assert loaded.storage == storage
        assert loaded.registry_at == str(file.parent / "kept")

    def test_tables_keep_their_own(self, file: Path) -> None:
        loaded = load(file, f'storage = "/lake"\n{self.SHAPE}')
        assert (loaded.registry, loaded.registry_at) == (None, "/lake")

    @pytest.mark.parametrize(
        ("top", "lines"),
        [
            (
                'storage = "kinesis://orders"',
                ['registry is missing. Fix: add registry = "./registry", beside a storage that is a stream'],
            ),
            (
                'storage = "kinesis://orders"\nregistry = "kinesis://orders"',
                [f"registry is 'kinesis://orders'. {REGISTRY_FIX}"],
            ),
            (
                'storage = "/lake"\nregistry = "/other"',
                [
                    "registry is set. Fix: remove it: only a storage that is a stream has its registry"
                    " elsewhere"
                ],
            ),
            ('storage = "kinesis://"', [f"storage is 'kinesis://'. {STORAGE_FIX}"]),
            ('storage = "kinesis://a/b"', [f"storage is 'kinesis://a/b'. {STORAGE_FIX}"]),
        ],
    )
    def test_a_mistake(self, file: Path, top: str, lines: list[str]) -> None:
        assert refusals_of(file, f"{top}\n{self.SHAPE}") == lines


class TestGoodFiles:
    def test_every_key(self, file: Path) -> None:
        loaded = load(
            file,
            """
            storage = "s3a://bucket/lake/"

            [[shape]]
            name = "open_orders"
            table = "public.orders"
            where = "status <> 'closed'"
            columns = ["id", "customer", "status", "amount"]
            flush_interval_ms = 250

            [[shape]]
            name = "t2"
            table = 'Shop."Order Lines"'
            """,
        )

        assert loaded == ShapesFile(
            path=str(file),
            storage="s3a://bucket/lake",
            shapes=(
                Shape(
                    "open_orders",
                    Relation("public", "orders"),
                    where="status <> 'closed'",
                    columns=("id", "customer", "status", "amount"),
                    flush_interval_ms=250,
                ),
                Shape("t2", Relation("shop", "Order Lines")),
            ),
        )
        assert loaded.location(loaded.shapes[0]) == "s3a://bucket/lake/open_orders"

    def test_defaults(self, file: Path) -> None:
        (shape,) = load(file, shape_with()).shapes

        assert (shape.where, shape.columns, shape.flush_interval_ms) == (None, None, 1000)

    @pytest.mark.parametrize(
        ("written", "storage"),
        [
            ("/srv/lake", "/srv/lake"),
            ("/srv/lake/", "/srv/lake"),
            ("s3a://bucket", "s3a://bucket"),
            ("s3a://my.bucket-1/a b/", "s3a://my.bucket-1/a b"),
        ],
    )
    def test_storage(self, file: Path, written: str, storage: str) -> None:
        text = shape_with().replace("/lake", written)

        assert load(file, text).storage == storage

    @pytest.mark.parametrize("written", ["lake", "./lake", "lake/"])
    def test_relative_storage_starts_at_the_file_and_not_at_the_working_directory(
        self, file: Path, monkeypatch: pytest.MonkeyPatch, written: str
    ) -> None:
        file.write_text(shape_with().replace("/lake", written))
        (file.parent / "elsewhere").mkdir()
        monkeypatch.chdir(file.parent / "elsewhere")

        assert load_shapes_file(Path("../shapes.toml")).storage == str(
            file.parent / "elsewhere" / ".." / "lake"
        )
        assert load_shapes_file(file).storage == str(file.parent / "lake")

    @pytest.mark.parametrize("name", ["a", "a" * 63, "t_2", "penstock"])
    def test_name(self, file: Path, name: str) -> None:
        assert load(file, shape_with(f'name = "{name}"')).shapes[0].name == name

    @pytest.mark.parametrize("interval", [10, 1000, 86_400_000])
    def test_flush_interval(self, file: Path, interval: int) -> None:
        text = shape_with(f"flush_interval_ms = {interval}")

        assert load(file, text).shapes[0].flush_interval_ms == interval

    def test_columns_are_spelled_as_in_the_catalog(self, file: Path) -> None:
        text = shape_with('columns = ["Id", "select", "größe"]')

        assert load(file, text).shapes[0].columns == ("Id", "select", "größe")

    def test_a_condition_over_several_lines(self, file: Path) -> None:
        text = shape_with('where = """\nstatus <> \'closed\'\nAND amount > 10\n"""')

        assert load(file, text).shapes[0].where == "status <> 'closed'\nAND amount > 10"


NAME_RULE = "Fix: use 1 to 63 of a-z, 0-9 and _, beginning with a letter"
TABLE_FIX = 'Fix: write table = "public.orders"'
INTERVAL_FIX = "Fix: write a whole number from 10 to 86400000"
NAN_FIX = 'Fix: write "stop", or "null" to store null for NaN'
COLUMNS_FIX = 'Fix: write columns = ["id", "status"]'
COLUMNS_OUT = "Fix: list the columns to keep, or leave columns out for all of them"

BAD_SHAPES = [
    ('name = "Orders"', f"shape 'Orders': name is 'Orders'. {NAME_RULE}"),
    ('name = "2fast"', f"shape '2fast': name is '2fast'. {NAME_RULE}"),
    ('name = "a-b"', f"shape 'a-b': name is 'a-b'. {NAME_RULE}"),
    ('name = " a"', f"shape ' a': name is ' a'. {NAME_RULE}"),
    ('name = "größe"', f"shape 'größe': name is 'größe'. {NAME_RULE}"),
    ('name = "a\\n"', f"shape 'a\\n': name is 'a\\n'. {NAME_RULE}"),
    ('name = "../x"', f"shape '../x': name is '../x'. {NAME_RULE}"),
    ('name = "_penstock_x"', f"shape '_penstock_x': name is '_penstock_x'. {NAME_RULE}"),
    ('name = "_penstock"', f"shape '_penstock': name is '_penstock'. {NAME_RULE}"),
    (f'name = "{"a" * 64}"', f"shape '{'a' * 64}': name is '{'a' * 64}'. {NAME_RULE}"),
    (f'name = "{"a" * 101}"', f"shape '{'a' * 100}…': name is '{'a' * 100}…'. {NAME_RULE}"),
    ('name = ""', f"shape number 1: name is ''. {NAME_RULE}"),
    ("name = 5", 'shape number 1: name is 5, not text. Fix: write name = "orders"'),
    ('name = ["a"]', 'shape number 1: name is a list, not text. Fix: write name = "orders"'),
    ("table = true", f"shape 'orders': table is true, not text. {TABLE_FIX}"),
    ("table = {a = 1}", f"shape 'orders': table is a table, not text. {TABLE_FIX}"),
    ("table = 2024-01-01", f"shape 'orders': table is a date or a time, not text. {TABLE_FIX}"),
    ('table = ""', f"shape 'orders': table is '', not schema.table. {TABLE_FIX}"),
    ('table = "orders"', f"shape 'orders': table is 'orders', not schema.table. {TABLE_FIX}"),
    ('table = "a.b.c"', f"shape 'orders': table is 'a.b.c', not schema.table. {TABLE_FIX}"),
    ('table = "public.my-t"', f"shape 'orders': table is 'public.my-t', not schema.table. {TABLE_FIX}"),
    (
        """table = 'public."a\tb"'""",
        f"shape 'orders': table is 'public.\"a\\tb\"', a name with control characters. {TABLE_FIX}",
    ),
    (
        f'table = "public.{"ü" * 32}"',
        f"shape 'orders': table is 'public.{'ü' * 32}', a name of more than 63 bytes. {TABLE_FIX}",
    ),
    ("where = 1", "shape 'orders': where is 1, not text. Fix: write where = \"status <> 'closed'\""),
    (
        'where = " \\n"',
        "shape 'orders': where is empty. Fix: write a condition, or leave where out for every row",
    ),
    ('columns = "id"', f"shape 'orders': columns is not a list of names. {COLUMNS_FIX}"),
    ('columns = ["id", 2]', f"shape 'orders': columns is not a list of names. {COLUMNS_FIX}"),
    ("columns = []", f"shape 'orders': columns is empty. {COLUMNS_OUT}"),
    ('columns = ["id", ""]', f"shape 'orders': columns holds an empty name. {COLUMNS_OUT}"),
    ('columns = ["id", "b", "id"]', "shape 'orders': columns holds 'id' 2 times. Fix: name it once"),
    (
        'columns = ["id", "b", "Id"]',
        "shape 'orders': columns holds 'id' and 'Id', equal but for case. "
        "Fix: keep one: a Delta table can't hold both",
    ),
    ("flush_interval_ms = 9", f"shape 'orders': flush_interval_ms is 9. {INTERVAL_FIX}"),
    ("flush_interval_ms = 86400001", f"shape 'orders': flush_interval_ms is 86400001. {INTERVAL_FIX}"),
    ("flush_interval_ms = -1000", f"shape 'orders': flush_interval_ms is -1000. {INTERVAL_FIX}"),
    ("flush_interval_ms = 100.0", f"shape 'orders': flush_interval_ms is 100.0. {INTERVAL_FIX}"),
    ("flush_interval_ms = true", f"shape 'orders': flush_interval_ms is true. {INTERVAL_FIX}"),
    ('numeric_nan = "NULL"', f"shape 'orders': numeric_nan is 'NULL'. {NAN_FIX}"),
    ("numeric_nan = nan", f"shape 'orders': numeric_nan is nan. {NAN_FIX}"),
    ('flush_interval_ms = "1s"', f"shape 'orders': flush_interval_ms is '1s'. {INTERVAL_FIX}"),
    (
        f"flush_interval_ms = 0x{'f' * 5000}",
        f"shape 'orders': flush_interval_ms is a huge number. {INTERVAL_FIX}",
    ),
    ('colums = ["id"]', "shape 'orders': unknown key 'colums'. Fix: did you mean columns?"),
    ('WHERE = "a"', "shape 'orders': unknown key 'WHERE'. Fix: did you mean where?"),
    (
        "primary = 1",
        "shape 'orders': unknown key 'primary'. "
        "Fix: remove it; a shape has name, table, where, columns, flush_interval_ms, numeric_nan",
    ),
    (
        'storage = "x"',
        "shape 'orders': unknown key 'storage'. Fix: move it above the first [[shape]]",
    ),
]


@pytest.mark.parametrize(("line", "refusal"), BAD_SHAPES)
def test_a_mistake_in_a_shape(file: Path, line: str, refusal: str) -> None:
    assert refusals_of(file, shape_with(line)) == [refusal]


SHAPE = '[[shape]]\nname = "orders"\ntable = "public.orders"\n'
STORAGE = 'storage = "/lake"\n'
TOP_FIX = "Fix: remove it; the file has storage, registry, shape"
NO_SHAPE = "no shape. Fix: add a [[shape]] with a name and a table"
NOT_A_LIST = "shape is not a list of tables. Fix: begin each shape with [[shape]], in two brackets"

BAD_FILES = [
    (SHAPE, ['storage is missing. Fix: add storage = "./lake" above the first [[shape]]']),
    (STORAGE, [NO_SHAPE]),
    (STORAGE + "shape = []", [NO_SHAPE]),
    (STORAGE + '[shape]\nname = "a"', [NOT_A_LIST]),
    (STORAGE + "shape = [1]", [NOT_A_LIST]),
    (STORAGE + "slot = 1\n" + SHAPE, [f"unknown key 'slot'. {TOP_FIX}"]),
    ('storag = "x"\n' + STORAGE + SHAPE, ["unknown key 'storag'. Fix: did you mean storage?"]),
    (STORAGE + "shapes = []\n" + SHAPE, ["unknown key 'shapes'. Fix: did you mean shape?"]),
    (
        "storage = 1\n" + SHAPE,
        ['storage is 1, not text. Fix: write storage = "./lake" above the first [[shape]]'],
    ),
    ('storage = ""\n' + SHAPE, [f"storage is ''. {STORAGE_FIX}"]),
    ('storage = "dbfs:/lake"\n' + SHAPE, [f"storage is 'dbfs:/lake'. {STORAGE_FIX}"]),
    ('storage = "file:/lake"\n' + SHAPE, [f"storage is 'file:/lake'. {STORAGE_FIX}"]),
    ('storage = "~/lake"\n' + SHAPE, [f"storage is '~/lake'. {STORAGE_FIX}"]),
    ('storage = "a\\u0000"\n' + SHAPE, [f"storage is 'a\\x00'. {STORAGE_FIX}"]),
    ('storage = "s3a://b/\\u0000"\n' + SHAPE, [f"storage is 's3a://b/\\x00'. {STORAGE_FIX}"]),
    ('storage = "s3://b/lake"\n' + SHAPE, [f"storage is 's3://b/lake'. {STORAGE_FIX}"]),
    ('storage = "s3a://"\n' + SHAPE, [f"storage is 's3a://'. {STORAGE_FIX}"]),
    ('storage = "s3a://key:secret@b/x"\n' + SHAPE, [f"storage is 's3a://***@b/x'. {STORAGE_FIX}"]),
    (
        STORAGE + "[[shape]]",
        [
            'shape number 1: name is missing. Fix: add name = "orders"',
            'shape number 1: table is missing. Fix: add table = "public.orders"',
        ],
    ),
    (STORAGE + SHAPE * 3, ["3 shapes are named 'orders'. Fix: give each a name of its own"]),
    (
        STORAGE + SHAPE + SHAPE.replace('"orders"', '"Orders"'),
        [
            "shapes are named 'orders' and 'Orders', equal but for case. Fix: give each a name of its own",
            f"shape 'Orders': name is 'Orders'. {NAME_RULE}",
        ],
    ),
]


@pytest.mark.parametrize(("text", "lines"), BAD_FILES)
def test_a_mistake_in_a_file(file: Path, text: str, lines: list[str]) -> None:
    assert refusals_of(file, text) == lines


def test_every_mistake_is_named_at_once(file: Path) -> None:
    text = """
        stroage = "./lake"
        [[shape]]
        name = "a"
        table = "orders"
        columns = ["id", "ID", "id"]
        flush_interval_ms = 0
        [[shape]]
        nam = "b"
        table = "public.b"
        [[shape]]
        name = "a"
        table = "public.c"
        where = ""
        """

    assert refusals_of(file, text) == [
        "unknown key 'stroage'. Fix: did you mean storage?",
        'storage is missing. Fix: add storage = "./lake" above the first [[shape]]',
        "2 shapes are named 'a'. Fix: give each a name of its own",
        f"shape 'a': table is 'orders', not schema.table. {TABLE_FIX}",
        "shape 'a': columns holds 'id' 2 times. Fix: name it once",
        "shape 'a': columns holds 'id' and 'ID', equal but for case. "
        "Fix: keep one: a Delta table can't hold both",
        f"shape 'a': flush_interval_ms is 0. {INTERVAL_FIX}",
        "shape number 2: unknown key 'nam'. Fix: did you mean name?",
        'shape number 2: name is missing. Fix: add name = "orders"',
        "shape 'a': where is empty. Fix: write a condition, or leave where out for every row",
    ]


class TestFilesThatCanNotBeRead:
    def test_missing(self, file: Path) -> None:
        assert refusals(file) == ["no such file. Fix: give the path of a shapes file"]

    def test_a_directory(self, file: Path) -> None:
        file.mkdir()

        assert refusals(file) == [
            "can't be read: Is a directory. Fix: give the path of a file that this user may read"
        ]

    def test_not_text(self, file: Path) -> None:
        file.write_bytes(b'storage = "\xff"')

        assert refusals(file) == ["not UTF-8 text. Fix: save it as UTF-8"]

    @pytest.mark.parametrize(
        ("text", "place"),
        [
            (STORAGE + "\nlake ./x\n", r"\(at line 3, column \d+\)"),
            (STORAGE + STORAGE + SHAPE, r"\(at line 2, column \d+\)"),
            ("storage = !!python/object:os.system\n", r"\(at line 1, column \d+\)"),
            ('storage = "/la', r"\(at end of document\)"),
        ],
    )
    def test_not_toml(self, file: Path, text: str, place: str) -> None:
        """The reason is tomllib's, in its own words, and has the place."""
        (line,) = refusals_of(file, text)

        assert re.fullmatch(rf"not TOML: [A-Z][^\n]+ {place}\. Fix: correct it there", line)

    def test_nested_to_exhaust_the_stack(self, file: Path) -> None:
        assert refusals_of(file, "a = " + "[" * 100_000) == [
            "not a shapes file: nested too deeply. Fix: take the nesting out"
        ]

    def test_a_value_too_deep_to_print(self, file: Path) -> None:
        text = "storage." + "a." * 2_000 + "a = 1\n" + SHAPE

        assert refusals_of(file, text) == [
            'storage is a table, not text. Fix: write storage = "./lake" above the first [[shape]]'
        ]

    def test_a_number_too_long_to_read(self, file: Path) -> None:
        (line,) = refusals_of(file, "storage = " + "9" * 5000)

        assert line.startswith("not TOML: Exceeds the limit (4300 digits)")


def test_an_error_survives_pickling_and_holds_its_lines() -> None:
    error = ShapeFileError("f: a. Fix: b\nf: c. Fix: d")

    assert pickle.loads(pickle.dumps(error)).lines == ["f: a. Fix: b", "f: c. Fix: d"]


def test_shapes_survive_pickling() -> None:
    assert pickle.loads(pickle.dumps(ORDERS)) == ORDERS


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("public.orders", Relation("public", "orders")),
        ("Public.ORDERS", Relation("public", "orders")),
        ("_s._t$1", Relation("_s", "_t$1")),
        ('"Public"."Orders"', Relation("Public", "Orders")),
        ('shop."a.b"', Relation("shop", "a.b")),
        ('shop."say ""hi"""', Relation("shop", 'say "hi"')),
        ('"2"."order lines"', Relation("2", "order lines")),
        ("große.ÄÖ", Relation("große", "ÄÖ")),
        (f"public.{'a' * 63}", Relation("public", "a" * 63)),
    ],
)
def test_table_names_are_read_as_postgres_reads_them(text: str, name: Relation) -> None:
    assert Relation.parse(text) == name
    assert Relation.parse(str(name)) == name


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (Relation("public", "orders"), "public.orders"),
        (Relation("public", "Orders"), 'public."Orders"'),
        (Relation("a.b", 'say "hi"'), '"a.b"."say ""hi"""'),
    ],
)
def test_table_names_are_quoted_where_needed(name: Relation, text: str) -> None:
    assert str(name) == text


@pytest.mark.parametrize(
    "text",
    [
        "orders", ".orders", "public.", "public..orders", " public.orders", "public. orders", "1a.b", "$a.b",
        'public."orders', 'public.""', 'public."a"b', "public.o;drop", "public.orders\n",
    ],
)  # fmt: skip
def test_what_is_no_table_name(text: str) -> None:
    with pytest.raises(ValueError, match=r"^not schema.table$"):
        Relation.parse(text)


class TestDefinitionHash:
    def test_it_is_the_same_on_every_machine_and_in_every_version(self) -> None:
        shape = replace(ORDERS, where="größe > 1", columns=("id", "größe"))

        assert definition_hash(ORDERS) == "b035f000b0ad631b9113e641b6875b7a5b0ee8563cbbcdc9b3bd182c1edcb8c3"
        assert definition_hash(shape) == "df4405e51b20f1bc6f11f0565314516d09b5ba198061678c6eb86416cfc9f4f4"

    def test_what_nan_becomes_is_part_of_it(self, file: Path) -> None:
        stops, null = (
            load(file, shape_with(f'numeric_nan = "{each}"')).shapes[0] for each in ("stop", "null")
        )

        assert definition_hash(stops) == definition_hash(load(file, shape_with()).shapes[0])
        assert definition_hash(null) != definition_hash(stops)

    def test_the_order_of_keys_in_the_file_is_nothing(self, file: Path) -> None:
        text = shape_with('where = "a > 1"', 'columns = ["id", "a"]')
        head, shape, *keys = text.split("\n")
        turned = "\n".join([head, shape, *reversed(keys)])

        assert definition_hash(load(file, text).shapes[0]) == definition_hash(load(file, turned).shapes[0])

    @pytest.mark.parametrize(
        "same",
        [
            replace(ORDERS, columns=("id", "a"), flush_interval_ms=10),
            replace(ORDERS, columns=("a", "id")),
        ],
    )
    def test_pace_and_column_order_are_no_definition(self, same: Shape) -> None:
        assert definition_hash(same) == definition_hash(replace(ORDERS, columns=("id", "a")))

    def test_everything_else_is(self) -> None:
        shapes = [
            ORDERS,
            replace(ORDERS, table=Relation("public", "Orders")),
            replace(ORDERS, table=Relation("shop", "orders")),
            replace(ORDERS, where="a > 1"),
            replace(ORDERS, where="a > 2"),
            replace(ORDERS, columns=("id",)),
            replace(ORDERS, columns=("id", "a")),
            replace(ORDERS, columns=("id,a",)),
        ]

        assert len({definition_hash(shape) for shape in shapes}) == len(shapes)
