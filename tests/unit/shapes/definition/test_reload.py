from __future__ import annotations

from collections.abc import Set
from typing import cast

import pytest

from penstock.model.relation import Relation
from penstock.model.shape import Shape, ShapesFile
from penstock.shapes.app import give_up_if_other
from penstock.shapes.definition.reload import Reload, compare_files
from penstock.shapes.definition.shapes_file import ShapeFileError
from penstock.shapes.leadership import ShapesLeadership

EDITED = Shape("a", Relation("public", "a"), where="id > 1")
A, B, C = (Shape(name, Relation("public", name)) for name in "abc")


def file(*shapes: Shape, storage: str = "/lake") -> ShapesFile:
    return ShapesFile("shapes.toml", storage, shapes)


def test_shapes_come_and_go_and_are_edited() -> None:
    edited = Shape("a", A.table, where="id > 1")
    slower = Shape("b", B.table, flush_interval_ms=5000)
    news = compare_files(file(A, B), file(edited, slower, C))
    assert news == Reload(("c",), (), ("a",), ("b",))
    assert news.not_as_before == {"a", "c"}
    assert compare_files(file(A, B), file(B)) == Reload((), ("a",), (), ())
    assert compare_files(file(A, B), file(B, A)).is_empty


class Leading:
    """Stands for a leadership: which file it began with, and what it was told."""

    def __init__(self, leading: ShapesFile, *, stopped: bool = False) -> None:
        self.file = leading
        self.stopped = stopped
        self.not_as_before: Set[str] | None = None

    @property
    def is_given_up(self) -> bool:
        return self.not_as_before is not None

    def has_stopped_shapes(self) -> bool:
        return self.stopped

    def give_up(self, not_as_before: Set[str]) -> None:
        self.not_as_before = not_as_before


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param([file(A, B)], None, id="nothing is different"),
        pytest.param([file(EDITED, B)], {"a"}, id="one reload"),
        pytest.param([file(EDITED, B), file(EDITED, B, C)], {"a", "c"}, id="the first one's count too"),
        pytest.param([file(EDITED, B), file(A, B)], set(), id="taken back: its copy is finished"),
        pytest.param([file(EDITED, B), file(EDITED, B)], {"a"}, id="the same file twice"),
    ],
)
def test_reloads_during_a_reload(files: list[ShapesFile], expected: set[str] | None) -> None:
    leading = Leading(file(A, B))
    for each in files:
        give_up_if_other(cast(ShapesLeadership, leading), each)
    assert leading.not_as_before == expected


def test_stopped_shapes_are_tried_again() -> None:
    leading = Leading(file(A, B), stopped=True)
    give_up_if_other(cast(ShapesLeadership, leading), file(A, B))
    assert leading.not_as_before == set()


def test_another_storage_needs_another_process() -> None:
    with pytest.raises(ShapeFileError, match=r"storage was /lake and is /sea\. Fix: start the service again"):
        compare_files(file(A), file(A, storage="/sea"))
