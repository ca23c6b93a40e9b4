"""Orders of a shop that does not exist, for those who have no file at hand, and a correction to load by key."""

from __future__ import annotations

import csv
import io
import random
from collections.abc import Sequence
from datetime import datetime, timedelta

from inlay.workspace import Inline, NewDataset, Source

__all__ = ["CORRECTION_NAME", "LABEL", "correction", "orders", "question", "request"]

LABEL = "Sample orders"
CORRECTION_NAME = "order-corrections.csv"
_ROWS = 500
_FIRST = datetime(2024, 3, 1, 8)  # noqa: DTZ001  (the shop's own time)
_COLUMNS = (
    "order_id", "ordered_at", "customer", "postcode", "city", "product", "quantity", "unit_price", "discount",
    "status", "note",
)  # fmt: skip
_CUSTOMERS = (
    ("Zoë Lindqvist", "01067", "Dresden"), ("Łukasz Nowak", "00950", "Warszawa"), ("Ada O'Neill", "02139", "Cambridge"),
    ("Jean-Luc Réaux", "06000", "Nice"), ("Mina Öztürk", "34425", "İstanbul"), ("Sam Lee, Jr.", "94105", "Oakland"),
    ("Ingrid Sørensen", "0150", "Oslo"), ("Paulo Souza", "01310", "São Paulo"), ("Yuki Tanaka", "1500001", "Tokyo"),
)  # fmt: skip
_PRODUCTS = (
    ("Oak plank, 20 mm", "24.90"), ("Walnut strip", "31.50"), ('Brass inlay 1/4"', "12.00"), ("Wood glue", "7.35"),
    ("Sanding disc (50)", "18.20"), ("Herringbone kit", "149.00"), ("Floor oil, 1 l", "22.75"), ("Felt pads", "3.99"),
)  # fmt: skip
_STATES = ("delivered", "delivered", "delivered", "shipped", "open", "returned")
_DISCOUNTS = ("", "", "", "", "5", "10", "12.5")
_NOTES = ("", "", "", "", "gift wrap", 'said "call first"', "leave at the door,\nback yard")


def request() -> NewDataset:
    """What is asked of the workspace to have it as a dataset."""
    return NewDataset(LABEL, Source(inline=Inline("csv", orders())))


def orders() -> str:
    """The file: codes with leading zeros, quotes, commas and line ends in cells, empty ones, and a few n/a."""
    return _as_csv([_order(number) for number in range(1, _ROWS + 1)])


def correction() -> str:
    """Some orders as they should be, and two that came later; `order_id` says which."""
    changed = [_order(number) for number in (7, 42, 101, 250, 499)]
    for row in changed:
        row[_COLUMNS.index("status")] = "delivered"
        row[_COLUMNS.index("discount")] = "15"
    return _as_csv([*changed, _order(_ROWS + 1), _order(_ROWS + 2)])


def question(table_name: str) -> str:
    """Something to ask of it."""
    return (
        "SELECT product, sum(quantity) AS pieces, sum(quantity * unit_price) AS revenue\n"
        f"FROM datasets.{table_name}\nGROUP BY product\nORDER BY revenue DESC"
    )


def _order(number: int) -> list[str]:
    chance = random.Random(number)  # noqa: S311  (the same order whenever it is asked for)
    customer, postcode, city = chance.choice(_CUSTOMERS)
    product, price = chance.choice(_PRODUCTS)
    ordered = _FIRST + timedelta(minutes=97 * number + chance.randrange(60))
    discount = "n/a" if number % 60 == 30 else chance.choice(_DISCOUNTS)
    return [
        f"{number:06}", ordered.isoformat(" "), customer, postcode, city, product, str(chance.randint(1, 12)), price,
        discount, chance.choice(_STATES), chance.choice(_NOTES),
    ]  # fmt: skip


def _as_csv(rows: Sequence[Sequence[str]]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows([_COLUMNS, *rows])
    return text.getvalue()
