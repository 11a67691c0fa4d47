"""A price list that one refreshes and many read, with asyncio; see docs/recipes.md.

price_list_asyncio.py SHOP, with the server in REDLATCH_URL and the version that is wanted, a line each, on standard input
"""

import asyncio
import sys
from pathlib import Path

from redlatch import aio


def version(prices: Path) -> int:
    """The version of the list. Its two lines tell the same while nobody writes; an empty list has version 0."""
    lines = prices.read_text().split()
    if len(lines) % 2 or len(set(lines)) > 1:
        raise ValueError("half a list")
    return int(lines[0]) if lines else 0


async def refresh(prices: Path, wanted: int) -> None:
    """Writes the list in two steps. Correct only while nobody else reads or writes."""
    prices.write_text(f"{wanted}\n")
    await asyncio.sleep(0.02)  # the query for the second half
    with open(prices, "a") as file:
        file.write(f"{wanted}\n")


async def look_up(lock: aio.RWLock, prices: Path, wanted: int) -> str:
    async with lock.read:  # beside other readers
        if version(prices) >= wanted:
            return "read"
    async with lock.write:  # alone
        if version(prices) >= wanted:  # somebody else was faster
            return "read"
        await refresh(prices, wanted)
    return "refreshed"


async def main(shop: str) -> None:
    async with aio.Client() as client:
        lock = client.rw_lock("prices", timeout=10)
        while line := await asyncio.to_thread(sys.stdin.readline):
            try:
                answer = await look_up(lock, Path(shop, "prices"), int(line))
            except ValueError as error:
                answer = str(error)
            print(line.strip(), answer, flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
