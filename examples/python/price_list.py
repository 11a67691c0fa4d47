"""A price list that one refreshes and many read: nobody sees half a list; see docs/recipes.md.

price_list.py SHOP, with the server in REDLATCH_URL and the version that is wanted, a line each, on standard input
"""

import sys
import time
from pathlib import Path

import redlatch


def version(prices: Path) -> int:
    """The version of the list. Its two lines tell the same while nobody writes; an empty list has version 0."""
    lines = prices.read_text().split()
    if len(lines) % 2 or len(set(lines)) > 1:
        raise ValueError("half a list")
    return int(lines[0]) if lines else 0


def refresh(prices: Path, wanted: int) -> None:
    """Writes the list in two steps. Correct only while nobody else reads or writes."""
    prices.write_text(f"{wanted}\n")
    time.sleep(0.02)  # the query for the second half
    with open(prices, "a") as file:
        file.write(f"{wanted}\n")


def look_up(lock: redlatch.RWLock, prices: Path, wanted: int) -> str:
    with lock.read:  # beside other readers
        if version(prices) >= wanted:
            return "read"
    with lock.write:  # alone
        if version(prices) >= wanted:  # somebody else was faster
            return "read"
        refresh(prices, wanted)
    return "refreshed"


def main(shop: str) -> None:
    with redlatch.Client() as client:
        lock = client.rw_lock("prices", timeout=10)
        for line in sys.stdin:
            try:
                answer = look_up(lock, Path(shop, "prices"), int(line))
            except ValueError as error:
                answer = str(error)
            print(line.strip(), answer, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
