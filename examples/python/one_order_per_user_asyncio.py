"""One order per user, with asyncio; see docs/recipes.md.

one_order_per_user_asyncio.py SHOP, with the server in REDLATCH_URL and one user a line on standard input
"""

import asyncio
import sys
from pathlib import Path

from redlatch import aio


async def order(shop: Path, user: str) -> bool:
    """Orders unless the user has ordered. Correct only while nobody else does the same for this user."""
    orders = shop / "orders"
    if user in orders.read_text().split():
        return False
    await asyncio.sleep(0.02)  # the payment
    with open(orders, "a") as file:
        file.write(f"{user}\n")
    return True


async def main(shop: str) -> None:
    async with aio.Client() as client:
        while line := await asyncio.to_thread(sys.stdin.readline):
            user = line.strip()
            async with client.lock(f"order:{user}", timeout=10):  # one name per user: others need not wait
                ordered = await order(Path(shop), user)
            print(user, "ordered" if ordered else "refused", flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
