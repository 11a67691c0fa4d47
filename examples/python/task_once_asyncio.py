"""Each task once, with asyncio; see docs/recipes.md.

task_once_asyncio.py FOLDER, with the server in REDLATCH_URL and one task a line on standard input
"""

import asyncio
import sys
from pathlib import Path

from redlatch import aio


async def run(folder: Path, task: str) -> bool:
    """Runs the task unless it was done before. Correct only while nobody else runs the same one.

    A lock knows who is at work, not what is finished: that has to be noted with the work.
    """
    done = folder / "done"
    if task in done.read_text().split():
        return False
    await asyncio.sleep(0.02)  # the work
    with open(done, "a") as file:
        file.write(f"{task}\n")
    return True


async def main(folder: str) -> None:
    async with aio.Client() as client:
        while line := await asyncio.to_thread(sys.stdin.readline):
            task = line.strip()
            lock = client.lock(f"task:{task}")
            if await lock.acquire(blocking=False):
                try:
                    answer = "done" if await run(Path(folder), task) else "known"
                finally:
                    await lock.release()
            else:
                # Not acknowledged, so that the queue delivers it again should that worker die.
                answer = "busy"
            print(task, answer, flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
