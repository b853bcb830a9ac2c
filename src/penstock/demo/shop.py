"""The shop: its tables, what it starts with, and the transactions that its staff run.

Every transaction reports its changes through `Till`, so the shop keeps books of its own: what it knows to be
committed comes from neither the WAL nor a decoding plugin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any, Final, LiteralString

import psycopg

DATABASE: Final = "shop"

KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "customers": ("id",),
    "products": ("id",),
    "stock": ("product_id", "warehouse"),
    "orders": ("id",),
    "order_lines": ("order_id", "line"),
}
"""The tables and their primary keys."""

SCHEMA: Final[LiteralString] = """
CREATE TABLE customers (
    id int PRIMARY KEY, name text NOT NULL, credit numeric(12,2) NOT NULL, orders int NOT NULL DEFAULT 0,
    since timestamptz NOT NULL DEFAULT now());
CREATE TABLE products (
    id int PRIMARY KEY, name text NOT NULL, price numeric(10,2) NOT NULL, tags text[] NOT NULL);
CREATE TABLE stock (
    product_id int REFERENCES products, warehouse text, quantity int NOT NULL,
    PRIMARY KEY (product_id, warehouse));
CREATE TABLE orders (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer_id int NOT NULL REFERENCES customers,
    status text NOT NULL DEFAULT 'open', note text, placed_at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE TABLE order_lines (
    order_id bigint REFERENCES orders, line int, product_id int NOT NULL REFERENCES products,
    quantity int NOT NULL, price numeric(10,2) NOT NULL, PRIMARY KEY (order_id, line));
ALTER TABLE orders REPLICA IDENTITY FULL;
"""
"""Orders are FULL because a shape filters them: an update must tell the values that it leaves as they are."""

_CUSTOMERS: Final = 200
_PRODUCTS: Final = 60
_WAREHOUSES: Final = ("north", "south, old")
_NOTES: Final = (
    None,
    "",
    'for "Zoë & Søren"',
    "ring twice\nleave it at the door",
    "100 % cotton, no \\ please",
)


class Till:
    """The open transaction of one member of staff: runs statements and counts the rows that they change."""

    def __init__(self, connection: psycopg.Connection, random: Random) -> None:
        self.random = random
        self.changes = 0
        self._connection = connection

    def run(self, statement: LiteralString, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run one INSERT, UPDATE or DELETE; gives what it returns."""
        cursor = self._connection.execute(statement, parameters)
        self.changes += cursor.rowcount
        return cursor.fetchall() if cursor.description else []

    @contextmanager
    def savepoint_undone(self) -> Iterator[None]:
        """What is done in here is rolled back to a savepoint; the transaction goes on."""
        before = self.changes
        with self._connection.transaction() as savepoint:
            yield
            raise psycopg.Rollback(savepoint)
        self.changes = before

    def products(self, most: int) -> list[int]:
        """A few different products, in order: staff who lock rows in one order seldom deadlock."""
        return sorted(self.random.sample(range(1, _PRODUCTS + 1), self.random.randint(1, most)))


def stock_up(till: Till) -> None:
    """What the shop starts with; three statements of many rows each."""
    till.run(
        "INSERT INTO customers (id, name, credit)"
        " SELECT n, 'customer ' || n, n * 12.5 FROM generate_series(1, %s) n",
        [_CUSTOMERS],
    )
    till.run(
        "INSERT INTO products SELECT n, 'product ' || n, n * 1.99, ARRAY['new', 'size ' || n %% 5]"
        " FROM generate_series(1, %s) n",
        [_PRODUCTS],
    )
    till.run(
        "INSERT INTO stock SELECT p, w, 500 FROM generate_series(1, %s) p, unnest(%s::text[]) w",
        [_PRODUCTS, list(_WAREHOUSES)],
    )


def place_order(till: Till) -> int:
    """An order with its lines, taken from stock; gives its number."""
    customer = till.random.randint(1, _CUSTOMERS)
    [(order,)] = till.run(
        "INSERT INTO orders (customer_id, note) VALUES (%s, %s) RETURNING id",
        [customer, till.random.choice(_NOTES)],
    )
    products = till.products(most=5)
    till.run(
        "INSERT INTO order_lines SELECT %s, n, id, 1 + (id + n) %% 3, price"
        " FROM unnest(%s::int[]) WITH ORDINALITY AS wanted (id, n) JOIN products USING (id)",
        [order, products],
    )
    till.run(
        "UPDATE stock SET quantity = quantity - 1 WHERE product_id = ANY (%s) AND warehouse = %s",
        [products, till.random.choice(_WAREHOUSES)],
    )
    till.run("UPDATE customers SET orders = orders + 1, credit = credit - 1.05 WHERE id = %s", [customer])
    return int(order)


def place_order_after_a_slip(till: Till) -> int:
    """An order whose first attempt is undone: a savepoint inside the transaction."""
    with till.savepoint_undone():
        place_order(till)
    return place_order(till)


def advance_order(till: Till, order: int) -> None:
    """An order goes on its way: the same row changes twice in one transaction."""
    till.run("UPDATE orders SET status = 'paid' WHERE id = %s", [order])
    till.run("UPDATE orders SET status = 'shipped', note = NULL WHERE id = %s", [order])


def cancel_order(till: Till, order: int) -> None:
    """An order and its lines go away."""
    till.run("DELETE FROM order_lines WHERE order_id = %s", [order])
    till.run("DELETE FROM orders WHERE id = %s", [order])


def restock(till: Till) -> None:
    """Several products get more stock; rows that were cleared come back under their old key."""
    till.run(
        "INSERT INTO stock SELECT p, %s, 50 FROM unnest(%s::int[]) p"
        " ON CONFLICT (product_id, warehouse) DO UPDATE SET quantity = stock.quantity + 50",
        [till.random.choice(_WAREHOUSES), till.products(most=8)],
    )


def clear_stock(till: Till) -> None:
    """A product leaves a warehouse."""
    till.run(
        "DELETE FROM stock WHERE product_id = ANY (%s) AND warehouse = %s",
        [till.products(most=1), till.random.choice(_WAREHOUSES)],
    )


def reprice(till: Till) -> None:
    """New prices for several products."""
    till.run(
        "UPDATE products SET price = round(price * %s, 2) + 0.01, tags = tags[1:2] || %s::text"
        " WHERE id = ANY (%s)",
        [till.random.choice(("0.95", "1.05")), till.random.choice(("sale", "dear", "")), till.products(4)],
    )


ORDERS: Final[tuple[Callable[[Till], int], ...]] = (place_order, place_order, place_order_after_a_slip)
"""Ways to get an order."""
UPKEEP: Final[tuple[Callable[[Till], None], ...]] = (restock, restock, clear_stock, reprice)
"""What has to be done besides."""
