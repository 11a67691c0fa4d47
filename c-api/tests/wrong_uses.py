"""Compares what a program of wrong uses is told with conformance/wrong_uses.json, or writes it there (REDLATCH_BLESS=1).

Usage: wrong_uses.py PROGRAM, with the server of the test in REDLATCH_URL.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

TABLE = Path(__file__).resolve().parents[2] / "conformance" / "wrong_uses.json"
LANGUAGE = "c"


def main(program: str) -> int:
    ran = subprocess.run([program], stdout=subprocess.PIPE, text=True, check=False, timeout=300)
    port = os.environ["REDLATCH_URL"].rsplit(":", 1)[1].strip("/")
    rows = json.loads(TABLE.read_text())
    bless = os.environ.get("REDLATCH_BLESS") == "1"
    told: dict[str, list[str]] = {}
    wrong = []
    for line in ran.stdout.splitlines():
        what, *found = line.split("\t")
        if not found:  # how a test went, or what failed in it
            print(line)
            continue
        if what in told or not found[1]:
            wrong.append(f"used twice, or nothing is wrong: {line}")
            continue
        text = found[1].replace(f"127.0.0.1:{port}", "SERVER")
        # Systems and servers have words of their own.
        text = re.sub(r"127\.0\.0\.1:\d+: [^;]+", "NOWHERE: REFUSED", text)
        found[1] = re.sub(r'the server said "[^"]*', 'the server said "...', text)
        told[what] = found
    for what, languages in rows:
        column = languages.get(LANGUAGE)
        if what not in told:
            if not column or not isinstance(column, str):  # why there is no such use
                wrong.append(f"{what}: no use of it in the program")
            continue
        found = told.pop(what)
        if bless:
            languages[LANGUAGE] = found
        elif found != column:
            wrong.append(f"{what}: {found}, not {column}")
    wrong += [f"{what}: no such row" for what in told]
    for line in wrong:
        print(f"  {line}")
    if ran.returncode:
        print(f"  the program ended with code {ran.returncode}")
    failed = bool(wrong or ran.returncode)
    if bless and not failed:
        rows = [[what, dict(sorted(languages.items()))] for what, languages in rows]
        TABLE.write_text(json.dumps(rows, indent=2) + "\n")
    print("FAILED" if failed else "ok", "every wrong use is told what is wrong and what to do")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
