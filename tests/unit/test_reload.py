from __future__ import annotations

import pytest

from penstock.shapes.reload import Reload, compare_files
from penstock.shapes.shape import Shape, TableName
from penstock.shapes.shapes_file import ShapeFileError, ShapesFile

A, B, C = (Shape(name, TableName("public", name)) for name in "abc")


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


def test_another_storage_needs_another_process() -> None:
    with pytest.raises(ShapeFileError, match=r"storage was /lake and is /sea\. Fix: start the service again"):
        compare_files(file(A), file(A, storage="/sea"))
