"""One order per user: who clicks twice orders once, whichever servers get the clicks; see docs/recipes.md.

one_order_per_user.py SHOP, with the server in REDLATCH_URL and one user a line on standard input
"""

import sys
import time
from pathlib import Path

import redlatch


def order(shop: Path, user: str) -> bool:
    """Orders unless the user has ordered. Correct only while nobody else does the same for this user."""
    orders = shop / "orders"
    if user in orders.read_text().split():
        return False
    time.sleep(0.02)  # the payment
    with open(orders, "a") as file:
        file.write(f"{user}\n")
    return True


def main(shop: str) -> None:
    with redlatch.Client() as client:
        for line in sys.stdin:
            user = line.strip()
            with client.lock(f"order:{user}", timeout=10):  # one name per user: others need not wait
                ordered = order(Path(shop), user)
            print(user, "ordered" if ordered else "refused", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
