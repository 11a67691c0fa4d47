"""Each task once: a queue delivers a task to several workers, or again; see docs/recipes.md.

task_once.py FOLDER, with the server in REDLATCH_URL and one task a line on standard input
"""

import sys
import time
from pathlib import Path

import redlatch


def run(folder: Path, task: str) -> bool:
    """Runs the task unless it was done before. Correct only while nobody else runs the same one.

    A lock knows who is at work, not what is finished: that has to be noted with the work.
    """
    done = folder / "done"
    if task in done.read_text().split():
        return False
    time.sleep(0.02)  # the work
    with open(done, "a") as file:
        file.write(f"{task}\n")
    return True


def main(folder: str) -> None:
    with redlatch.Client() as client:
        for line in sys.stdin:
            task = line.strip()
            lock = client.lock(f"task:{task}")
            if lock.acquire(blocking=False):
                try:
                    answer = "done" if run(Path(folder), task) else "known"
                finally:
                    lock.release()
            else:
                # Not acknowledged, so that the queue delivers it again should that worker die.
                answer = "busy"
            print(task, answer, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
