"""The registry's file, and the ceiling that is written ahead of what is confirmed."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from penstock.model.relation import Relation
from penstock.model.snapshot_again import SnapshotAgain
from penstock.postgres.catalog.table_facts import ColumnFacts, TableFacts
from penstock.postgres.catalog.table_tree import Member, Tree
from penstock.shapes.registry import registry as module
from penstock.shapes.registry.registry import (
    Ceiling,
    Copy,
    FileRegistry,
    Registry,
    RegistryError,
    ShapeEntry,
)

FACTS = TableFacts(Tree(Member(Relation("public", "orders"), 1, 2, "a")), (ColumnFacts("id", 1, "integer"),))
OLD = Registry("7301", 2, "penstock_shapes", 0x16_B374D848, {"orders": ShapeEntry("ab" * 32, None, None)})
NEW = OLD.with_ceiling(OLD.ceiling_lsn + 1).awaiting("orders", "its definition was changed")


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """A storage that holds OLD."""
    store = FileRegistry(tmp_path / "lake")
    assert store.read() is None
    store.write(OLD)
    return tmp_path / "lake"


def file_of(storage: Path) -> Path:
    return storage / "_penstock" / "registry"


def opened(storage: Path) -> FileRegistry:
    store = FileRegistry(storage)
    store.read()
    return store


def test_what_was_written_is_read_back(storage: Path) -> None:
    assert FileRegistry(storage).read() == OLD
    copying = NEW.copying("orders", Copy(2**40, FACTS))
    for registry in (
        NEW,
        copying,
        OLD.with_ceiling(2**40, {"orders": 2**40}),
        OLD.looked({"orders": 2**40}),
    ):
        opened(storage).write(registry)
        assert FileRegistry(storage).read() == registry
    assert os.listdir(storage / "_penstock") == ["registry"]


def test_a_person_can_read_the_file(storage: Path) -> None:
    assert json.loads(file_of(storage).read_text()) == {
        "version": 1,
        "system_id": "7301",
        "timeline": 2,
        "slot": "penstock_shapes",
        "ceiling_lsn": "16/B374D848",
        "shapes": {
            "orders": {
                "definition": "ab" * 32,
                "awaits_snapshot": None,
                "facts": None,
                "offset": None,
                "copy": None,
                "looked_lsn": None,
            }
        },
    }


FACTS_ON_DISK = (
    b'[[[["public","orders"],1,2,"a",false,"",0,""],[],false,[],false],'
    b'[["id",1,"integer","",false,false,null,[],false]],[],"r","d",[],false,[],0,"UTF8"]'
)
ON_DISK = (
    b'{"version":1,"system_id":"7301","timeline":2,"slot":"penstock_shapes","ceiling_lsn":"16/B374D848","shapes":{'
    b'"customers":{"definition":"ef","awaits_snapshot":"it is new","facts":null,"offset":null,"copy":null},'
    b'"items":{"definition":"cd","awaits_snapshot":"its definition was changed","facts":'
    + FACTS_ON_DISK
    + b","
    b'"offset":null,"copy":{"cut_lsn":"16/B374D850","facts":' + FACTS_ON_DISK + b"}},"
    b'"orders":{"definition":"ab","awaits_snapshot":null,"facts":' + FACTS_ON_DISK + b","
    b'"offset":"16/B374D840","copy":null}}}'
)
"""Of the first release, but for white space."""
SAME = Registry(
    "7301",
    2,
    "penstock_shapes",
    0x16_B374D848,
    {
        "orders": ShapeEntry("ab", None, FACTS, 0x16_B374D840),
        "items": ShapeEntry("cd", "its definition was changed", FACTS, copy=Copy(0x16_B374D850, FACTS)),
        "customers": ShapeEntry("ef", "it is new", None),
    },
)


def test_storages_of_before_are_read(storage: Path) -> None:
    file_of(storage).write_bytes(msgspec.json.format(ON_DISK) + b"\n")
    store = FileRegistry(storage)
    assert store.read() == SAME
    store.write(SAME)
    assert FileRegistry(storage).read() == SAME


def test_an_entry_of_before_offsets_and_copies_were_kept_is_read() -> None:
    entry = b'{"definition":"ab","awaits_snapshot":null,"facts":null}'
    content = module.encode(OLD).partition(b'"shapes"')[0] + b'"shapes":{"orders":' + entry + b"}}"
    assert module.decode(content, "registry").shapes == {"orders": ShapeEntry("ab", None, None)}


def test_a_file_of_before_is_read(storage: Path) -> None:
    """Without what was added since: members without their bounds, entries without their looks."""
    opened(storage).write(OLD.settled("orders", FACTS))
    content = json.loads(file_of(storage).read_text())
    entry = content["shapes"]["orders"]
    del entry["looked_lsn"]
    table, *rest = entry["facts"][0]
    entry["facts"][0] = [table[: len(Member._fields) - 3], *rest]
    file_of(storage).write_text(json.dumps(content))
    assert FileRegistry(storage).read() == OLD.settled("orders", FACTS)


def test_a_table_that_has_moved_is_the_same_table() -> None:
    settled = OLD.settled("orders", FACTS)
    before = settled.shapes["orders"]
    assert settled.with_ceiling(2**40, {"orders": 2**40}).shapes["orders"].has_only_moved_since(before)
    assert settled.looked({"orders": 2**40}).shapes["orders"].has_only_moved_since(before)
    assert not settled.awaiting("orders", "any").shapes["orders"].has_only_moved_since(before)
    altered = settled.altered("orders", FACTS._replace(attributes=9)).shapes["orders"]
    assert not altered.has_only_moved_since(before)


def test_entries_await_and_settle() -> None:
    assert NEW.shapes["orders"] == ShapeEntry("ab" * 32, "its definition was changed", None)
    settled = NEW.settled("orders", FACTS).shapes["orders"]
    assert settled == ShapeEntry("ab" * 32, None, FACTS)
    assert OLD.altered("orders", FACTS).shapes["orders"] == settled
    assert OLD.all_awaiting([SnapshotAgain("orders", "its definition was changed")]) == OLD.awaiting(
        "orders", "its definition was changed"
    )
    assert OLD.with_ceiling(5) == OLD, "a ceiling never goes down"
    assert OLD.shapes["orders"].awaits_snapshot is None, "the former one is untouched"


STEPS = ("mkstemp", "fdopen", "fsync", "rename", "sync_directory")


def steps_of(monkeypatch: pytest.MonkeyPatch, at: Callable[[str], None]) -> None:
    """Call `at` with the name of each step of a write, just before it is done."""

    def watch(owner: object, name: str) -> None:
        real = getattr(owner, name)

        def step(*arguments: object) -> object:
            at(name)
            return real(*arguments)

        monkeypatch.setattr(owner, name, step)

    watch(tempfile, "mkstemp")
    watch(os, "fdopen")
    watch(os, "rename")
    watch(module, "sync_directory")
    real_fsync = os.fsync

    def fsync(descriptor: int) -> None:
        if not os.path.isdir(f"/proc/self/fd/{descriptor}"):
            at("fsync")
        real_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)


def test_content_is_synced_before_the_rename_and_the_name_after(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(storage)
    steps: list[str] = []
    with monkeypatch.context() as patched:
        steps_of(patched, steps.append)
        store.write(NEW)
    assert steps == list(STEPS)


@pytest.mark.parametrize("deadly", [*STEPS, "never"])
def test_a_process_that_dies_at_any_step_leaves_the_old_or_the_new(
    storage: Path, monkeypatch: pytest.MonkeyPatch, deadly: str
) -> None:
    child = os.fork()
    if child == 0:
        try:
            steps_of(monkeypatch, lambda step: os._exit(9) if step == deadly else None)
            opened(storage).write(NEW)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == (0 if deadly == "never" else 9)
    expected = NEW if deadly in ("sync_directory", "never") else OLD
    store = FileRegistry(storage)
    assert store.read() == expected
    store.write(OLD.with_ceiling(2**40))
    assert os.listdir(storage / "_penstock") == ["registry"], "what the dead one left is removed"


@pytest.mark.parametrize("failing", STEPS)
def test_a_step_that_fails_is_an_error_with_the_fix_and_can_be_tried_again(
    storage: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    store = opened(storage)

    def fail(step: str) -> None:
        if step == failing:
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        steps_of(patched, fail)
        with pytest.raises(RegistryError, match=r"can't write .*registry: No space left on device\. Fix: "):
            store.write(NEW)
    assert FileRegistry(storage).read() in (OLD, NEW)
    store.write(NEW)
    assert FileRegistry(storage).read() == NEW
    assert os.listdir(storage / "_penstock") == ["registry"]


def test_a_torn_temporary_file_is_ignored(storage: Path) -> None:
    (storage / "_penstock" / ".registry.abc.partial").write_bytes(b'{"version":1,"sys')
    assert FileRegistry(storage).read() == OLD


WHOLE = json.loads(module.encode(OLD))
ENTRY = WHOLE["shapes"]["orders"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        module.encode(OLD)[:-20],
        b"null",
        b"[]",
        b"{}",
        b"\xff\xfe",
        json.dumps(WHOLE | {"version": 2}).encode(),
        json.dumps(WHOLE | {"ceiling_lsn": "far"}).encode(),
        json.dumps(WHOLE | {"timeline": "2"}).encode(),
        json.dumps(WHOLE | {"comment": ""}).encode(),
        json.dumps(WHOLE | {"ceiling_lsn": 7}).encode(),
        *(json.dumps({key: WHOLE[key] for key in WHOLE if key != gone}).encode() for gone in WHOLE),
        *(
            json.dumps(
                WHOLE | {"shapes": {"orders": {key: ENTRY[key] for key in ENTRY if key != gone}}}
            ).encode()
            for gone in ("definition", "awaits_snapshot", "facts")
        ),
    ],
)
def test_an_unreadable_registry_is_an_error_and_never_an_empty_one(storage: Path, content: bytes) -> None:
    file_of(storage).write_bytes(content)
    store = FileRegistry(storage)
    with pytest.raises(RegistryError, match=r"registry is not a registry that can be read: .*Fix: "):
        store.read()
    with pytest.raises(RuntimeError):
        store.write(NEW)
    assert file_of(storage).read_bytes() == content


def test_a_newer_version_is_named(storage: Path) -> None:
    file_of(storage).write_bytes(b'{"version":7,"everything":"else"}')
    with pytest.raises(RegistryError, match="it has version 7, and this Penstock reads version 1"):
        FileRegistry(storage).read()


def test_a_file_that_may_not_be_read_is_an_error(storage: Path) -> None:
    file_of(storage).unlink()
    file_of(storage).mkdir()
    with pytest.raises(RegistryError, match=r"can't read .*: Is a directory"):
        FileRegistry(storage).read()


def test_a_storage_that_is_no_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "lake").touch()
    with pytest.raises(RegistryError, match=r"can't read .*: Not a directory"):
        FileRegistry(tmp_path / "lake").read()


def test_one_who_woke_up_does_not_write_over_its_successor(storage: Path) -> None:
    frozen, successor = opened(storage), opened(storage)
    successor.write(NEW)
    with pytest.raises(RegistryError, match="written by another process"):
        frozen.write(OLD.with_ceiling(2**40))
    assert FileRegistry(storage).read() == NEW


def test_one_who_saw_no_registry_does_not_write_over_another(tmp_path: Path) -> None:
    frozen, successor = opened(tmp_path), opened(tmp_path)
    successor.write(NEW)
    with pytest.raises(RegistryError, match="written by another process"):
        frozen.write(OLD)


def test_nothing_is_confirmed_above_what_is_on_disk() -> None:
    ceiling = Ceiling(100)
    assert ceiling.confirmable(90) == 90
    assert ceiling.confirmable(150) == 100
    assert ceiling.due(150, now=10.0) == 150
    assert ceiling.confirmable(150) == 100, "its write is only under way"
    ceiling.written()
    assert ceiling.confirmable(170) == 150


def test_the_ceiling_is_written_at_most_once_a_second() -> None:
    ceiling = Ceiling(100)
    assert ceiling.due(150, now=10.0) == 150
    ceiling.written()
    assert ceiling.due(160, now=10.9) is None
    assert ceiling.due(170, now=11.0) == 170


def test_there_is_one_write_at_a_time_and_none_without_need() -> None:
    ceiling = Ceiling(100)
    assert ceiling.due(100, now=1.0) is None
    assert ceiling.due(101, now=1.0) == 101
    assert ceiling.due(102, now=9.0) is None
    with pytest.raises(RuntimeError):
        Ceiling(100).written()


def test_a_failed_write_confirms_nothing_and_is_tried_again() -> None:
    ceiling = Ceiling(100)
    ceiling.due(150, now=10.0)
    ceiling.failed()
    assert ceiling.confirmable(150) == 100
    assert ceiling.due(150, now=10.5) is None
    assert ceiling.due(155, now=11.0) == 155
