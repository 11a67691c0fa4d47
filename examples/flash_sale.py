"""Runs the flash sale of all languages side by side: first without the lock, then with it.

flash_sale.py [--workers N] [--rust PROGRAM] [--c PROGRAM] [--python INTERPRETER] [--node INTERPRETER]

The server is in REDLATCH_URL; what is not given is taken from this checkout's build. Ends with one line that counts, and with an exit code other than 0 if
anything was oversold under the lock, or a program failed or sold nothing.
"""

import argparse
import contextlib
import os
import select
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import redlatch

STOCK = 100
HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
BUILT = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug"
BAR = 40
PATIENCE = 120.0  # seconds a sale may take before something must be wrong


def programs(args: argparse.Namespace) -> dict[str, list[str]]:
    return {
        "rust": [args.rust],
        "python": [args.python, str(HERE / "python" / "flash_sale.py")],
        "asyncio": [args.python, str(HERE / "python" / "flash_sale_asyncio.py")],
        "node": [args.node, str(HERE / "node" / "flash_sale.mjs")],
        "c": [args.c or compile_c()],
    }


def compile_c() -> str:
    """Builds the C program against this checkout's header and library."""
    program = BUILT / "flash_sale_c"
    library = [
        f"-I{ROOT / 'c-api' / 'include'}",
        f"-L{BUILT}",
        f"-Wl,-rpath,{BUILT}",
        "-lredlatch",
        "-lpthread",
    ]
    source = str(HERE / "c" / "flash_sale.c")
    subprocess.run(["cc", "-Wall", "-Wextra", "-O2", source, *library, "-o", str(program)], check=True)
    return str(program)


class Screen:
    """A live line per language on a terminal; elsewhere only the last state is printed."""

    def __init__(self, languages: list[str]) -> None:
        self.languages = languages
        self.live = sys.stdout.isatty()
        self.drawn = False

    def draw(self, sold: Counter[str], *, last: bool = False) -> None:
        if not (self.live or last):
            return
        if self.live and self.drawn:
            print(f"\x1b[{len(self.languages) + 1}A", end="")
        most = max([STOCK, *sold.values()])
        for language in self.languages:
            print(f"  {language:<8} {'█' * (sold[language] * BAR // most):<{BAR}} {sold[language]:4}")
        print(f"  {'sold':<8} {sum(sold.values()):4} of {STOCK}", flush=True)
        self.drawn = True


@contextlib.contextmanager
def started(
    commands: dict[str, list[str]], arguments: list[str]
) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """Starts all programs; whatever still runs at the end is stopped."""
    running = {
        name: subprocess.Popen(
            [*command, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for name, command in commands.items()
    }
    try:
        yield running
    finally:
        for process in running.values():
            with process:  # closes its pipes and waits; what it started may keep them open
                process.kill()


def orders(shop: Path) -> Counter[str]:
    return Counter((shop / "orders").read_text().split())


@contextlib.contextmanager
def queued(running: dict[str, subprocess.Popen[str]], workers: int) -> Iterator[None]:
    """Keeps the door shut until all workers wait in front of it.

    The lock is fair: each of them has its turn then, however slow its program is.
    """
    with redlatch.Client() as client:
        door = client.lock("flash-sale", kind="fair")
        with door:
            yield
            end = time.monotonic() + PATIENCE
            while (waiting := len(door.waiters())) < len(running) * workers:
                if any(process.poll() is not None for process in running.values()):
                    return  # its sales and its exit code tell the rest
                if time.monotonic() > end:
                    raise SystemExit(f"only {waiting} workers wait for the lock after {PATIENCE:.0f} s")
                time.sleep(0.01)


def first_line(process: subprocess.Popen[str], end: float) -> str:
    """The first line of the program; less, if the program or the time is over before."""
    line = b""
    if process.stdout is not None:
        # readline() has no limit.
        while select.select([process.stdout], [], [], max(0.0, end - time.monotonic()))[0]:
            read = os.read(process.stdout.fileno(), 64)
            line += read
            if not read or line.endswith(b"\n"):
                break
    return line.decode()


def sale(commands: dict[str, list[str]], workers: int, *flags: str) -> Counter[str]:
    """One sale; returns who sold how many."""
    with tempfile.TemporaryDirectory(prefix="flash-sale-") as folder:
        shop = Path(folder)
        (shop / "stock").write_text(f"{STOCK:04}")
        (shop / "orders").touch()
        with started(commands, [folder, str(workers), *flags]) as running:
            end = time.monotonic() + PATIENCE
            for name, process in running.items():
                if (line := first_line(process, end)) != "ready\n":
                    raise SystemExit(
                        f"the {name} program did not get ready within {PATIENCE:.0f} s: it printed {line!r}"
                    )
            with contextlib.nullcontext() if flags else queued(running, workers):
                for process in running.values():
                    if process.stdin is not None:
                        process.stdin.write("go\n")
                        process.stdin.flush()
            screen = Screen(list(commands))
            end = time.monotonic() + PATIENCE
            while any(process.poll() is None for process in running.values()):
                if time.monotonic() > end:
                    raise SystemExit(f"the sale did not end within {PATIENCE:.0f} s")
                screen.draw(orders(shop))
                time.sleep(0.05)
            screen.draw(orders(shop), last=True)
            failed = [name for name, process in running.items() if process.returncode != 0]
            if failed:
                raise SystemExit(f"these programs failed: {', '.join(failed)}")
        return orders(shop)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rust", default=str(BUILT / "flash_sale"))
    parser.add_argument("--c")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--node", default="node")
    parser.add_argument("--workers", type=int, default=2, help="per program")
    args = parser.parse_args()
    commands = programs(args)

    print(f"Without the lock: {STOCK} items, {args.workers} workers per program, everybody at once")
    wild = sum(sale(commands, args.workers, "--without-lock").values())
    print(f"  oversold by {max(0, wild - STOCK)}: {wild} orders for {STOCK} items\n")
    if wild <= STOCK:
        raise SystemExit("nothing was oversold without the lock, so this shows nothing; try more workers")

    print("With the lock: the same programs, the same stock")
    sales = sale(commands, args.workers)
    if idle := [language for language in commands if not sales[language]]:
        raise SystemExit(f"these programs sold nothing under the lock: {', '.join(idle)}; each has to sell")
    sold = sum(sales.values())
    print(f"\nflash sale: languages={','.join(commands)} sold={sold} oversold={max(0, sold - STOCK)}")
    return 0 if sold == STOCK else 1


if __name__ == "__main__":
    sys.exit(main())
