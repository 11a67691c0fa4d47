"""The flash sale with threads; see examples/README.md.

flash_sale.py SHOP WORKERS [--without-lock], with the server in REDLATCH_URL
"""

import contextlib
import sys
import threading
import time
from pathlib import Path

import redlatch


def sell(shop: Path) -> bool:
    """Sells one item; False when the stock is empty. Correct only while nobody else does the same."""
    with open(shop / "stock", "r+") as stock:
        left = int(stock.read())
        if left == 0:
            return False
        time.sleep(0.001)  # the payment
        stock.seek(0)
        stock.write(f"{left - 1:04}")
    with open(shop / "orders", "a") as orders:
        orders.write("python\n")
    return True


def work(client: redlatch.Client, shop: Path, locked: bool) -> None:
    # Workers of all programs have their turn in the order in which they come.
    lock = client.lock("flash-sale", kind="fair") if locked else contextlib.nullcontext()
    sold = True
    while sold:
        with lock:
            sold = sell(shop)


def main(shop: str, workers: str, *flags: str) -> int:
    failures: list[threading.ExceptHookArgs] = []
    threading.excepthook = failures.append
    with redlatch.Client() as client:
        client.connect()
        print("ready", flush=True)  # the sale begins for everybody at once
        sys.stdin.readline()
        threads = [
            threading.Thread(target=work, args=(client, Path(shop), not flags)) for _ in range(int(workers))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for failure in failures:
        print(f"a worker failed: {failure.exc_value!r}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
