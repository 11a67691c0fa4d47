"""Counts the function calls that a pair makes in Python, for benches/guard.py: of a client without telemetry, before the
process has any and while another client has it. Prints the greater number."""

import argparse
import sys
from types import FrameType

import redlatch

PAIRS = 100


def calls(client: redlatch.Client) -> float:
    lock, count = client.lock("bench:1"), 0

    def note(frame: FrameType, event: str, function: object) -> None:
        nonlocal count
        count += event in ("call", "c_call") and function is not sys.setprofile

    with lock:
        pass  # the engine starts
    sys.setprofile(note)
    for _ in range(PAIRS):
        with lock:
            pass
        lock.acquire()
        lock.release()
    sys.setprofile(None)
    return count / PAIRS / 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    url = parser.parse_args().url
    with redlatch.Client(url) as client, redlatch.Client(url) as other:
        before = calls(client)
        from redlatch.otel import instrument

        instrument(other)
        calls(other)
        print(max(before, calls(client)))


if __name__ == "__main__":
    main()
