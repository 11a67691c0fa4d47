"""The conformance driver of Python's threads; see conformance/README.md for the protocol.

Every actor thread is a real thread, since the thread is the owner. A driver of its own ("private") runs the thread
`main` on the main thread, where Ctrl-C cancels.
"""

import os
import queue
import signal
import sys
import threading
from collections import defaultdict
from typing import Any

import redlatch
from protocol import answer, client_options, failure, hello, lines, lock_options, patience

Job = dict[str, Any]


class Driver:
    def __init__(self) -> None:
        self.clients: dict[str, redlatch.Client] = {}
        self.entered: dict[tuple[str, str, str], list[tuple[redlatch.Lock, redlatch.Grant]]] = defaultdict(
            list
        )
        self.threads: dict[tuple[str, str], queue.SimpleQueue[Job]] = {}
        self.main: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self.private = False
        self.on_main: int | None = None

    def read(self) -> None:
        for request in lines():
            if request["op"] == "cancel":
                self.cancel(request)
                continue
            self.private = self.private or bool(request.get("private"))
            self.thread(request).put(request)
        os._exit(0)

    def thread(self, request: Job) -> "queue.SimpleQueue[Job]":
        name = (request.get("client", ""), request.get("as", "main"))
        if self.private and name[1] == "main":
            return self.main
        if name not in self.threads:
            self.threads[name] = queue.SimpleQueue()
            threading.Thread(target=self.work, args=(self.threads[name],), daemon=True).start()
        return self.threads[name]

    def cancel(self, request: Job) -> None:
        here = self.on_main == request["target"]
        if here:
            os.kill(os.getpid(), signal.SIGINT)
        answer(request, {"status": "ok" if here else "not_found"})

    def work(self, jobs: "queue.SimpleQueue[Job]") -> None:
        while True:
            self.serve(jobs.get())

    def serve(self, request: Job) -> None:
        try:
            reply = self.perform(request)
        except redlatch.LockError as error:
            reply = failure(error)
        except KeyboardInterrupt:
            reply = {"status": "cancelled"}
        answer(request, reply)

    def work_on_main(self) -> None:
        while True:
            job = self.main.get()
            self.on_main = job["id"]
            self.serve(job)
            self.on_main = None

    def perform(self, request: Job) -> dict[str, Any]:
        op, name = request["op"], request.get("client", "")
        if op == "hello":
            return hello("python")
        if op == "open":
            self.clients[name] = redlatch.Client(request["url"], **client_options(request)).connect()
            return {"status": "ok"}
        client = self.clients[name]
        if op == "close":
            return {"status": "ok", "value": client.close()}
        if op == "acquire":
            lock = client.lock(request["lock"], **lock_options(name, request))
            if "token" in request:
                won = lock.acquire(timeout=patience(request), token=request["token"])
                return {"status": "ok" if won else "timeout", "token": None}
            grant = lock.__enter__()
            self.grants(request).append((lock, grant))
            if "extend_ms" in request:
                grant.extend(request["extend_ms"] / 1000)
            return {"status": "ok", "token": grant.fencing_token}
        lock = client.lock(request["lock"])
        return self.ask(op, request, lock)

    def grants(self, request: Job) -> list[tuple[redlatch.Lock, redlatch.Grant]]:
        return self.entered[request["client"], request["as"], request["lock"]]

    def ask(self, op: str, request: Job, lock: redlatch.Lock) -> dict[str, Any]:
        if op == "release":
            if grants := self.grants(request):
                entered, _ = grants.pop()
                entered.__exit__(None, None, None)
            else:
                lock.release()
        elif op == "extend":
            lock.extend(request["lease_ms"] / 1000)
        elif op == "force":
            return {"status": "ok", "value": lock.force_release()}
        elif op == "held":
            return {"status": "ok", "value": lock.owned()}
        elif op == "count":
            return {"status": "ok", "value": lock.hold_count}
        elif op == "locked":
            return {"status": "ok", "value": lock.locked()}
        elif op == "holder":
            holder = lock.holder()
            return {"status": "ok", "value": holder and {"owner": holder.owner, "count": holder.count}}
        elif op == "lost":
            return self.lost(request)
        elif op == "fork":
            return fork(lock)
        else:
            return {"status": "unsupported"}
        return {"status": "ok"}

    def lost(self, request: Job) -> dict[str, Any]:
        told: queue.Queue[redlatch.LockLostError] = queue.Queue()
        _, grant = self.grants(request)[-1]
        grant.on_lost(told.put)
        try:
            error = told.get(timeout=request["within_ms"] / 1000)
        except queue.Empty:
            return {"status": "timeout"}
        return {"status": "ok", "reason": error.reason}


def fork(lock: redlatch.Lock) -> dict[str, Any]:
    """A child process is told this when it uses the parent's client."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            lock.acquire(timeout=1)
            os.write(writing, b"ok")
        except redlatch.LockError as error:
            os.write(writing, error.kind.encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        status = pipe.read().decode()
    os.waitpid(child, 0)
    return {"status": status}


def main() -> None:
    # A shell starts background jobs with SIGINT ignored, and Python leaves that so.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    driver = Driver()
    threading.Thread(target=driver.read, daemon=True).start()
    driver.work_on_main()


if __name__ == "__main__":
    sys.exit(main())
