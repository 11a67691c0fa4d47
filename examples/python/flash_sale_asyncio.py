"""The flash sale with asyncio; see examples/README.md.

flash_sale_asyncio.py SHOP WORKERS [--without-lock], with the server in REDLATCH_URL
"""

import asyncio
import contextlib
import sys
from pathlib import Path

from redlatch import aio


async def sell(shop: Path) -> bool:
    """Sells one item; False when the stock is empty. Correct only while nobody else does the same."""
    with open(shop / "stock", "r+") as stock:
        left = int(stock.read())
        if left == 0:
            return False
        await asyncio.sleep(0.001)  # the payment
        stock.seek(0)
        stock.write(f"{left - 1:04}")
    with open(shop / "orders", "a") as orders:
        orders.write("asyncio\n")
    return True


async def work(client: aio.Client, shop: Path, locked: bool) -> None:
    # Workers of all programs have their turn in the order in which they come.
    lock = client.lock("flash-sale", kind="fair") if locked else contextlib.nullcontext()
    sold = True
    while sold:
        async with lock:
            sold = await sell(shop)


async def main(shop: str, workers: str, *flags: str) -> None:
    async with aio.Client() as client:
        await client.connect()
        print("ready", flush=True)  # the sale begins for everybody at once
        await asyncio.to_thread(sys.stdin.readline)
        await asyncio.gather(*(work(client, Path(shop), not flags) for _ in range(int(workers))))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
