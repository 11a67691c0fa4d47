"""The smallest program: holds a lock and says so. The server is in REDLATCH_URL."""

import redlatch

with redlatch.Client() as client, client.lock("hello") as grant:
    print("held", grant.name)
