"""Makes a test program of the examples in the header's comments.

examples.py HEADER PROGRAM: an example is indented by four. Functions come first in it, and then what stands in a function. It is
given a client, a lock that nobody else has, and a canceller, and fails if it asks for the text of an error.
"""

import re
import sys
from pathlib import Path

BEGIN = """\
#include "check.h"

#include <poll.h>

static redlatch_client *client;
static redlatch_lock *lock;
static redlatch_canceller *canceller;

static const char *told_error(void)
{
    const char *error = redlatch_last_error();
    CHECK(!"an error is told");
    return error;
}
#define redlatch_last_error told_error
"""

header, program = map(Path, sys.argv[1:])
# A comment with what it belongs to.
comments = re.findall(r"/\*\*((?:(?!\*/).)*)\*/([^;{]*)", header.read_text(), re.DOTALL)
examples: list[str] = []
text, tests = BEGIN, []
for comment, declared in comments:
    lines = [
        line.removeprefix(" *")[5:] if line.startswith(" *     ") else "" for line in comment.splitlines()
    ]
    code = "\n".join(lines).strip()
    if not code:
        continue
    examples.append(code)
    name = re.findall(r"redlatch_(\w+)(?=\()", declared)[0]
    functions, brace, body = code.rpartition("\n}\n") if code.startswith("static ") else ("", "", code)
    body = re.sub("^(?=.)", "    ", body.strip(), flags=re.MULTILINE)
    given = f'client = open_client();\n    lock = lock_of(client, "c:example:{name}");\n'
    given += "    CHECK_OK(redlatch_canceller_new(&canceller));\n    {\n"
    text += f"\n{functions}{brace}\nstatic void {name}(void)\n{{\n    {given}{body}\n    }}\n}}\n"
    tests.append(f"TEST({name})")
program.write_text(f"{text}\nMAIN({', '.join(tests)})\n")

# Each kind of object has an example that makes it.
makers = {declared for _, rest in comments for declared in re.findall(r"(redlatch_\w+_new)(?=\()", rest)}
missing = sorted(maker for maker in makers if not any(f"{maker}(" in code for code in examples))
print(f"{len(examples)} examples; without one: {missing}")
sys.exit(bool(missing) or len(examples) < 20)
