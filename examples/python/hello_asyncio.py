"""The smallest program: holds a lock and says so. The server is in REDLATCH_URL."""

import asyncio

from redlatch import aio


async def main() -> None:
    async with aio.Client() as client, client.lock("hello") as grant:
        print("held", grant.name)


asyncio.run(main())
