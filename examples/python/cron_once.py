"""A cron job that all hosts start and one of them runs; see docs/recipes.md.

cron_once.py FOLDER PERIOD, with the server in REDLATCH_URL. PERIOD is how often cron starts it, in seconds.
"""

import sys
import time
from pathlib import Path

import redlatch


def report(folder: Path) -> None:
    with open(folder / "reports", "a") as file:
        file.write(f"python {time.ctime()}\n")


def main(folder: str, period: str) -> None:
    with redlatch.Client() as client:
        # It lingers: the end of the client leaves it to its lease, which ends before the next period.
        lock = client.lock("cron:report", kind="simple", lease=0.9 * float(period), linger=True)
        if not lock.acquire(blocking=False):
            print("skipped")
            return
        try:
            report(Path(folder))
        except BaseException:
            lock.release()  # it did not run: the next host may
            raise
        print("ran")  # not released: a host whose clock is late would run the job again


if __name__ == "__main__":
    main(*sys.argv[1:])
