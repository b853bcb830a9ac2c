"""What is wrong with a text that is meant to be YAML. For the tests of docs/."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml


class _Strict(yaml.SafeLoader):
    """A key that stands twice in a mapping is an error: PyYAML would take the last, others the first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key!r} stands there twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def yaml_complaint(text: str) -> str | None:
    """In words; None if it can be read, and holds something."""
    try:
        # The loader is a safe one.
        documents = list(yaml.load_all(text, Loader=_Strict))
    except yaml.YAMLError as error:
        return str(error)
    good = documents and all(isinstance(each, dict | list) for each in documents)
    return None if good else "neither a mapping nor a list"
