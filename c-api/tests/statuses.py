"""Compares the statuses that functions returned in the tests to those that the header lists.

statuses.py HEADER NOTES: each line of NOTES is the name of a function and that of a status.
"""

import re
import sys
from pathlib import Path

header, notes = (Path(path).read_text() for path in sys.argv[1:])
listed: dict[str, set[str]] = {}
for comment, name in re.findall(
    r"/\*\*((?:(?!\*/).)*)\*/\s*(?:REDLATCH_MUST_CHECK\s+)?redlatch_status (\w+)\(", header, re.DOTALL
):
    listed[name] = set(re.findall(r"REDLATCH_([A-Z_]+)", comment.partition("Statuses:")[2]))
# Calls through a helper of a test have its name.
returned = {tuple(line.split()) for line in notes.splitlines() if line.split()[0] in listed}
missing = sorted((name, status) for name, status in returned if status.upper() not in listed[name])
for name, status in missing:
    print(f"{name} returned {status}, which the header does not list for it")
print(f"{len(returned)} statuses of {len({name for name, _ in returned})} functions were seen")
# So few would mean that the tests note nothing, or that this reads the header no longer.
sys.exit(bool(missing) or len(returned) < 40)
