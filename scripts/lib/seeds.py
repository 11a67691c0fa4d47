"""seeds.py FILE FOLDER: writes each line of the seeds as a file of its own, which is what libFuzzer reads."""

import hashlib
import sys
from pathlib import Path

seeds, folder = Path(sys.argv[1]), Path(sys.argv[2])
for line in seeds.read_text().splitlines():
    # Rust's `escape_ascii` writes what Python reads as escapes.
    data = line.encode("ascii").decode("unicode_escape").encode("latin-1")
    (folder / hashlib.sha1(data).hexdigest()).write_bytes(data)
