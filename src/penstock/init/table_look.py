"""What the rules of shapes make of each table, for `penstock init`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from psycopg import AsyncConnection

from penstock.decoding.decoder import Decoder
from penstock.decoding.plugins import decoder_for
from penstock.init.shapes_text import TableLook
from penstock.init.sizes import TableSize
from penstock.model.relation import Relation
from penstock.model.shape import Shape
from penstock.postgres.catalog.table_catalog import ShapeCatalog
from penstock.postgres.catalog.table_facts import PARTITIONED, TableFacts
from penstock.shapes.definition.table_rules import table_problems

_IDENTITIES: Final = {"d": "default", "n": "nothing", "f": "full", "i": "by an index"}
_SOME_ROWS: Final = "true"


async def look_at_tables(
    session: AsyncConnection, plugin: str, relations: Sequence[Relation], sizes: Mapping[Relation, TableSize]
) -> list[TableLook]:
    """Each of the tables that still exists, in this order."""

    async def same_session() -> AsyncConnection:
        return session

    decoder = decoder_for(plugin)
    facts = await ShapeCatalog(same_session, decoder).facts(relations)
    return [_look(facts[relation], decoder, sizes) for relation in relations if relation in facts]


def _look(facts: TableFacts, decoder: Decoder, sizes: Mapping[Relation, TableSize]) -> TableLook:
    relation = facts.relation
    problems = [str(problem) for problem in table_problems(Shape("", relation), facts, decoder)]
    try:
        Relation.parse(str(relation))
    except ValueError as error:
        problems.append(f"a shapes file can't name it: {error}")
    with_where = table_problems(Shape("", relation, where=_SOME_ROWS), facts, decoder)
    needs = [problem.fix for problem in with_where if str(problem) not in problems]
    found = [sizes[leaf.relation] for leaf in facts.leaves if leaf.relation in sizes]
    counts = [size.rows for size in found if size.rows is not None]
    return TableLook(
        relation,
        sum(counts) if counts else None,
        sum(size.size_bytes for size in found),
        facts.key,
        _IDENTITIES[facts.replica_identity],
        len(facts.leaves) if facts.kind == PARTITIONED else 0,
        problems,
        "; ".join(needs) or None,
    )
