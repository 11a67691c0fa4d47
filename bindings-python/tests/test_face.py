"""Annotations that can be evaluated, help, names from arguments, and locks in classes of the standard library and under trio."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import pydoc
import subprocess
import sys
import threading
import typing
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any
from unittest.mock import AsyncMock, create_autospec

import pytest
import redis
import redlatch
from conftest import LIMIT, eventually, run
from redlatch import _redlatch, aio

# ---- annotations ----


def public_functions() -> Iterator[tuple[str, Any]]:
    for name in (
        "redlatch",
        "redlatch.aio",
        "redlatch.exceptions",
        "redlatch.compat.redispy",
        "redlatch.compat.redispy.aio",
    ):
        module = importlib.import_module(name)
        yield from functions_of(module, f"{name}.")


def functions_of(owner: ModuleType | type, path: str) -> Iterator[tuple[str, Any]]:
    classes = [base for base in getattr(owner, "__mro__", ()) if base.__module__.startswith("redlatch")]
    for name in getattr(owner, "__all__", dict.fromkeys(name for each in classes for name in vars(each))):
        thing = inspect.unwrap(getattr(owner, name)) if name != "Redis" else None
        if inspect.isfunction(thing):
            yield path + name, thing
        elif inspect.isclass(thing) and isinstance(owner, ModuleType):
            yield path + name, thing
            yield from functions_of(thing, f"{path}{name}.")


FUNCTIONS = dict(public_functions())


@pytest.mark.parametrize("path", FUNCTIONS)
def test_annotations_can_be_evaluated(path: str) -> None:
    hints = typing.get_type_hints(FUNCTIONS[path])
    assert not any(isinstance(hint, str) for hint in hints.values())
    if inspect.isfunction(FUNCTIONS[path]):
        inspect.signature(FUNCTIONS[path], eval_str=True)


def test_all_functions_of_clients_and_locks_are_looked_at() -> None:
    assert {
        "redlatch.Client.lock",
        "redlatch.aio.Lock.acquire",
        "redlatch.compat.redispy.Lock.extend",
    } <= set(FUNCTIONS)


def test_annotations_need_no_package() -> None:
    program = """
        import sys
        sys.modules["typing_extensions"] = None
        import typing
        from redlatch import Client, aio
        for function in (Client.__init__, Client.lock, Client.locked, aio.Client.connect, aio.Client.__aenter__):
            typing.get_type_hints(function)
        print("evaluated")
    """
    assert run(program) == "evaluated\n"


def test_what_is_awaited_is_a_coroutine_function() -> None:
    is_one: Callable[[object], bool]
    # Python 3.10 and 3.11 let asyncio alone be told.
    is_one = inspect.iscoroutinefunction if sys.version_info >= (3, 12) else asyncio.iscoroutinefunction
    methods = ("acquire", "release", "extend", "locked", "holder", "force_release", "__aenter__")
    assert [name for name in methods if not is_one(getattr(aio.Lock, name))] == []
    assert isinstance(create_autospec(aio.Lock).return_value.acquire, AsyncMock)


def test_a_decorated_coroutine_function_is_one(client: redlatch.Client, name: str) -> None:
    async def work(number: int) -> int:
        return number

    for each in (client, aio.Client()):
        assert inspect.iscoroutinefunction(each.locked(name)(work))
        assert inspect.iscoroutinefunction(each.locked("work:{number}")(work))


# ---- help ----


@pytest.mark.parametrize(
    "row", [row for row in _redlatch.options() if row[1] != "acquire"], ids=lambda row: row[0]
)
def test_help_says_what_each_option_means(row: tuple[str, str, str, float, str, str]) -> None:
    name, scope, _, _, default, meaning = row
    default = {"true": "True", "false": "False"}.get(default, default)
    if name == "reentrant":
        default = "False"
    with pytest.raises(redlatch.InvalidArgumentError) as caught:
        redlatch.Client(**{name: object()})  # type: ignore[arg-type]
    acceptable = str(caught.value).partition("give it ")[2].replace("true or false", "True or False")
    wanted = f" {name}: {acceptable}; default {default} {meaning} "
    for options, of in ((redlatch.ClientOptions, "client"), (redlatch.LockOptions, "lock")):
        text = " ".join(pydoc.plain(pydoc.render_doc(options)).replace("|", " ").split())
        assert (wanted in f"{text} ") == (scope == of)


@pytest.mark.parametrize("face", [redlatch, aio], ids=["threads", "asyncio"])
def test_help_fits_a_screen_and_names_the_rest(face: Any) -> None:
    for thing, options in ((face.Client, "ClientOptions"), (face.Client.lock, "LockOptions")):
        lines = inspect.getdoc(thing).splitlines()
        assert len(lines) <= 15 and max(map(len, lines)) <= 125, lines
        assert f"help(redlatch.{options})" in lines[-1]
        # Each line of the list names an argument or an option.
        named = [line.partition(":")[0] for line in lines if line.partition(":")[0].isidentifier()]
        known = {name for name, *_ in _redlatch.options()} | inspect.signature(thing).parameters.keys()
        assert len(named) >= 5 and known.issuperset(named)
    for options in (redlatch.ClientOptions, redlatch.LockOptions):
        assert max(map(len, str(options.__doc__).splitlines())) <= 110


def test_without_docstrings_there_is_no_help() -> None:
    program = "import redlatch; print(redlatch.Client.__doc__, redlatch.Client.lock.__doc__)"
    done = subprocess.run([sys.executable, "-OO", "-c", program], capture_output=True, text=True)
    assert done.stdout == "None None\n", done.stderr


# ---- the decorator ----


def test_a_decorator_without_a_name_is_refused(client: redlatch.Client) -> None:
    def work() -> None: ...

    async def later() -> None: ...

    for call in (
        client.locked(work),
        lambda: client.locked(work)(1, 2),
        lambda: client.locked(work)(work, a=1),
    ):  # type: ignore[arg-type, call-arg]
        with pytest.raises(TypeError, match=r"write @client\.locked\(name\)"):
            call()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"later.*write @client\.locked\(name\)"):
        client.locked(later)  # type: ignore[arg-type]


def test_options_are_checked_when_a_function_with_a_name_from_its_call_is_decorated(
    client: redlatch.Client,
) -> None:
    for name in (lambda number: f"a:{number}", "a:{number}"):
        with pytest.raises(redlatch.InvalidArgumentError, match="leese"):
            client.locked(name, leese=1)(lambda number: None)  # type: ignore[call-arg]


def test_a_name_is_filled_from_the_arguments(client: redlatch.Client, name: str, look: redis.Redis) -> None:
    class Shop:
        id = 7

        @client.locked(name + ":{self.id}:{order[id]:03}:{kind}:{{tag}}", timeout=0)
        def sell(self, order: dict[str, int], *, kind: str = "plain") -> list[str]:
            return [key for key in look.keys(f"{name}:*") if ":__" not in key]

    assert Shop().sell({"id": 5}) == [f"{name}:7:005:plain:{{tag}}"]
    assert Shop().sell(order={"id": 6}, kind="{self}") == [f"{name}:7:006:{{self}}:{{tag}}"]
    with pytest.raises(TypeError, match="order"):
        Shop().sell()  # type: ignore[call-arg]


async def test_a_name_is_filled_from_the_arguments_in_asyncio(name: str) -> None:
    async with aio.Client() as client:

        @client.locked(name + ":{id}", timeout=0)
        async def held(id: int) -> tuple[bool, bool]:
            return await client.lock(f"{name}:{id}").locked(), await client.lock(f"{name}:{id + 1}").locked()

        assert await held(1) == (True, False)
        assert not await client.lock(f"{name}:1").locked()


def test_a_name_without_placeholders_may_have_braces(client: redlatch.Client, name: str) -> None:
    @client.locked("{{" + name + "}}:x")
    def held() -> bool:
        return client.lock("{" + name + "}:x").owned()

    assert held()


@pytest.mark.parametrize(
    ("template", "part"),
    [
        ("order:{ident}", r"\{ident\} is no parameter of .*; it has id, width\. .*\{\{ or \}\}"),
        ("order:{}", r"\{\} is no parameter"),
        ("order:{0}", r"\{0\} is no parameter"),
        ("order:{id:{widht}}", r"\{widht\} is no parameter"),
        ("order:{id", r"expected '}'.*\{\{ or \}\}"),
        ("order:}", r"Single '}'.*\{\{ or \}\}"),
    ],
)
def test_a_wrong_placeholder_is_told_when_the_function_is_decorated(
    client: redlatch.Client, template: str, part: str
) -> None:
    def work(id: int, width: int) -> None: ...

    async def later(id: int, width: int) -> None: ...

    for function in (work, later):
        with pytest.raises(redlatch.InvalidArgumentError, match=part) as caught:
            client.locked(template)(function)
        assert repr(template) in str(caught.value)


# ---- threading.Condition ----


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("block", [True, False], ids=["with", "acquire"])
def test_a_condition_waits_without_the_lock(
    client: redlatch.Client, name: str, reentrant: bool, block: bool
) -> None:
    lock = client.lock(name, reentrant=reentrant)
    condition = threading.Condition(lock)
    items: list[str] = []
    seen: list[Any] = []

    def consume() -> None:
        condition.__enter__() if block else condition.acquire()
        if reentrant:
            lock.acquire()
        levels = lock.hold_count
        seen.append("waits")
        seen.append(condition.wait_for(lambda: items, LIMIT))
        seen.append((levels, lock.hold_count, lock.owned()))
        if reentrant:
            lock.release()
        condition.__exit__(None, None, None) if block else condition.release()

    thread = threading.Thread(target=consume)
    thread.start()
    eventually(lambda: seen, "the other thread has the lock")
    with condition:  # as soon as it waits
        items.append("item")
        condition.notify()
    thread.join(LIMIT)
    levels = 2 if reentrant else 1
    assert seen == ["waits", ["item"], (levels, levels, True)] and not lock.locked()


def test_a_condition_of_a_lock_that_others_have_is_refused(client: redlatch.Client, name: str) -> None:
    condition = threading.Condition(client.lock(name))
    with redlatch.Client() as other, other.lock(name):
        for use in (condition.notify, condition.wait):
            with pytest.raises(RuntimeError, match="un-acquired"):
                use()


def test_a_condition_tells_that_the_lock_was_lost(
    client: redlatch.Client, name: str, look: redis.Redis
) -> None:
    lock = client.lock(name)
    condition = threading.Condition(lock)
    waits: list[int] = []
    with pytest.raises(redlatch.LockLostError), condition:
        look.delete(name)
        eventually(lambda: not lock.owned(), "the loss is told")
        waits.append(1)
        condition.wait()
        waits.append(2)
    assert waits == [1]


def test_a_condition_that_cannot_acquire_again_says_so(client: redlatch.Client, name: str) -> None:
    condition = threading.Condition(client.lock(name, timeout=0.5))
    with redlatch.Client() as other:
        taken: list[redlatch.Grant] = []
        thread = threading.Thread(target=lambda: taken.append(other.lock(name).__enter__()))
        with pytest.raises(redlatch.LockTimeoutError, match=name), condition:
            thread.start()
            eventually(lambda: other.stats()["waiting"] == 1, "the other one waits")
            condition.wait(0.05)
        thread.join()
        taken[0].release()
    assert client.stats()["holds"] == 0


# ---- trio ----


def test_under_trio_the_face_of_asyncio_says_what_to_use(name: str) -> None:
    trio = pytest.importorskip("trio")
    client = aio.Client()
    lock = client.lock(name)

    async def block() -> None:
        async with lock:
            raise AssertionError

    async def tell() -> list[str]:
        told = []
        for call in (
            client.connect,
            client.close,
            lock.acquire,
            lock.release,
            lock.locked,
            lambda: lock.extend(1),
            block,
        ):
            with pytest.raises(RuntimeError) as caught:
                await call()
            told.append(str(caught.value))
        with pytest.raises(RuntimeError) as caught:
            lock.owned()
        return [*told, str(caught.value)]

    for text in trio.run(tell):
        assert (
            "trio" in text and 'anyio.run(main, backend="asyncio")' in text and "to_thread.run_sync" in text
        )
    # Where no loop runs at all trio has nothing to do with it.
    with pytest.raises(RuntimeError, match="no running event loop"):
        lock.owned()


def test_what_the_error_under_trio_recommends_works(client: redlatch.Client, name: str) -> None:
    trio = pytest.importorskip("trio")
    inside: list[int] = []

    def work() -> None:
        with client.lock(name):
            inside.append(1)
            assert len(inside) == 1
            inside.pop()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(trio.to_thread.run_sync, work)

    trio.run(main)
    assert not client.lock(name).locked()
