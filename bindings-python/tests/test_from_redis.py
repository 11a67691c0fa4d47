"""Clients that are made of a client of redis-py: for one server, with TLS, through Sentinel, and of a cluster."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
import redlatch
from conftest import LIMIT, Server
from redis.credentials import UsernamePasswordCredentialProvider
from redlatch import aio
from redlatch.compat import redispy
from redlatch.compat._settings import settings_of
from redlatch.compat.redispy import aio as redispy_aio
from server import Cluster, Sentinels
from tls import CERTIFICATES, Terminator

FACES = ["threads", "asyncio"]
CA, CERTIFICATE, KEY = (str(CERTIFICATES / name) for name in ("ca.pem", "client.pem", "client.key"))


def locks(client: Any, name: str) -> None:
    """Locks of all faces that are made of this client lock a name where the client sees it."""
    with redlatch.Client.from_redis(client) as ours, ours.lock(name):
        assert client.exists(name)
    assert not client.exists(name)
    with redispy.Lock(client, name, timeout=LIMIT), redispy.Lock(client, name + "2"):
        assert client.exists(name)
    with client.lock(name, timeout=LIMIT, lock_class=redispy.Lock):
        assert client.exists(name)


async def locks_in_asyncio(client: Any, name: str) -> None:
    async with aio.Client.from_redis(client) as ours, ours.lock(name):
        assert await client.exists(name)
    assert not await client.exists(name)
    async with client.lock(name, timeout=LIMIT, lock_class=redispy_aio.Lock) as lock:
        assert await client.exists(name)
        assert await lock.owned()


# ---- one server ----


def test_one_server(server: Server, name: str) -> None:
    with redis.Redis(port=server.port, db=1) as client:
        locks(client, name)
    with redis.Redis(unix_socket_path=str(server.unix_socket)) as client:
        locks(client, name)
    with redis.Redis.from_url(f"unix://{server.unix_socket}?db=2") as client:
        locks(client, name)


async def test_one_server_in_asyncio(server: Server, name: str) -> None:
    async with redis.asyncio.Redis(port=server.port, db=1) as client:
        await locks_in_asyncio(client, name)
    async with redis.asyncio.Redis(unix_socket_path=str(server.unix_socket)) as client:
        await locks_in_asyncio(client, name)


def test_a_client_is_of_the_face_that_makes_it(server: Server) -> None:
    """Whichever face the client of redis-py is for: nothing of it is used but what it is told."""
    assert type(redlatch.Client.from_redis(redis.asyncio.Redis(port=server.port))) is redlatch.Client
    assert type(aio.Client.from_redis(redis.Redis(port=server.port))) is aio.Client


def test_options_come_before_what_is_taken_over(server: Server, name: str) -> None:
    client = redis.Redis(port=server.port, socket_connect_timeout=1.5)
    _, options = settings_of(client)
    assert options == (("connect_timeout", 1.5),)
    with redlatch.Client.from_redis(client, connect_timeout=2, kind="simple") as ours, ours.lock(name):
        assert client.type(name) == b"string"
    with pytest.raises(redlatch.InvalidArgumentError, match="connect_timeout"):
        redlatch.Client.from_redis(client, connect_timeout=-1)


URLS: list[tuple[dict[str, Any], str]] = [
    ({}, "redis://localhost:6379/0"),
    ({"host": "::1", "port": 7, "db": 3}, "redis://[::1]:7/3"),
    ({"password": "p@ss:/?"}, "redis://:p%40ss%3A%2F%3F@localhost:6379/0"),
    ({"username": "app", "password": "x"}, "redis://app:x@localhost:6379/0"),
    (
        {"credential_provider": UsernamePasswordCredentialProvider("app", "x")},
        "redis://app:x@localhost:6379/0",
    ),
    (
        {"credential_provider": UsernamePasswordCredentialProvider(password="x")},
        "redis://:x@localhost:6379/0",
    ),
    ({"unix_socket_path": "/tmp/a b.sock"}, "unix:///tmp/a%20b.sock"),
    (
        {"unix_socket_path": "/tmp/s", "db": 2, "username": "app", "password": "x y"},
        "unix:///tmp/s?db=2&user=app&pass=x%20y",
    ),
    ({"ssl": True, "port": 6380, "password": "x"}, "rediss://:x@localhost:6380/0"),
]


@pytest.mark.parametrize("client", [redis.Redis, redis.asyncio.Redis], ids=FACES)
@pytest.mark.parametrize(("options", "url"), URLS)
def test_the_connection_is_taken_over(client: Callable[..., Any], options: dict[str, Any], url: str) -> None:
    made, settings = settings_of(client(**options))
    assert made == url
    # Whatever is made of it can be read.
    redlatch.Client(made, **dict(settings))


def test_a_password_of_a_provider_is_used(own_server: Server, name: str) -> None:
    own_server("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all")
    own_server("CONFIG", "SET", "requirepass", "another")
    provider = UsernamePasswordCredentialProvider("app", "secret")
    with redis.Redis(port=own_server.port, credential_provider=provider) as client:
        locks(client, name)


# ---- TLS ----


@pytest.fixture
def encrypted(server: Server) -> Iterator[int]:
    """The port of a way to the server that is encrypted and asks clients for a certificate."""
    with closing(Terminator(server.port, ask_clients=True)) as terminator:
        yield int(terminator.url.rpartition(":")[2])


def tls(port: int, **options: Any) -> dict[str, Any]:
    files = {"ssl_ca_certs": CA, "ssl_certfile": CERTIFICATE, "ssl_keyfile": KEY}
    return {"host": "localhost", "port": port, "ssl": True, **files, **options}


def test_tls(encrypted: int, name: str, tmp_path: Path) -> None:
    with redis.Redis(**tls(encrypted)) as client:
        locks(client, name)
    query = f"ssl_ca_certs={CA}&ssl_certfile={CERTIFICATE}&ssl_keyfile={KEY}"
    with redis.Redis.from_url(f"rediss://localhost:{encrypted}?{query}") as client:
        locks(client, name)
    both = tmp_path / "both.pem"
    both.write_text(Path(CERTIFICATE).read_text() + Path(KEY).read_text())
    data = Path(CA).read_text()
    options = tls(encrypted, ssl_ca_certs=None, ssl_ca_data=data, ssl_certfile=str(both), ssl_keyfile=None)
    with redis.Redis(**options) as client:
        locks(client, name)


async def test_tls_in_asyncio(encrypted: int, name: str) -> None:
    async with redis.asyncio.Redis(**tls(encrypted)) as client:
        await locks_in_asyncio(client, name)


# ---- Sentinel ----


@pytest.fixture(scope="module")
def sentinels() -> Iterator[list[tuple[str, int]]]:
    with Sentinels() as deployment:
        yield [("127.0.0.1", each.port) for each in deployment.sentinels]


def test_sentinel(sentinels: list[tuple[str, int]], name: str) -> None:
    with redis.sentinel.Sentinel(sentinels).master_for("redlatch") as client:
        locks(client, name)
    made = redis.sentinel.Sentinel(sentinels).master_for("redlatch", redis_class=redispy.Redis, db=1)
    with made as client, client.lock(name) as lock:
        assert isinstance(lock, redispy.Lock)
        assert client.exists(name)


async def test_sentinel_in_asyncio(sentinels: list[tuple[str, int]], name: str) -> None:
    made = redis.asyncio.sentinel.Sentinel(sentinels)
    async with made.master_for("redlatch") as client:
        await locks_in_asyncio(client, name)
    for sentinel in made.sentinels:
        await sentinel.aclose()


def test_the_connection_through_sentinel_is_taken_over() -> None:
    hosts = [("s2", 2), ("s1", 1)]
    login = {"username": "app", "password": "a/b", "db": 3}
    plain = redis.sentinel.Sentinel(hosts, sentinel_kwargs={"password": "s&t"}).master_for("main", **login)
    url, _ = settings_of(plain)
    assert url == "redis+sentinel://app:a%2Fb@s1:1,s2:2/main/3?sentinel_password=s%26t"
    redlatch.Client(url)
    files = {"ssl": True, "ssl_ca_certs": CA}
    encrypted = redis.sentinel.Sentinel(hosts, sentinel_kwargs=files).master_for("main", **files)
    url, options = settings_of(encrypted)
    assert (url, dict(options)) == ("rediss+sentinel://s1:1,s2:2/main/0", {"tls_ca": CA})
    redlatch.Client.from_redis(encrypted)


# ---- Cluster ----


@pytest.fixture(scope="module")
def cluster() -> Iterator[int]:
    """The port of a node."""
    with Cluster() as deployment:
        yield deployment.data[0].port


def test_cluster(cluster: int, name: str) -> None:
    with redis.RedisCluster(host="127.0.0.1", port=cluster) as client:
        locks(client, name)
    with redis.RedisCluster.from_url(f"redis://127.0.0.1:{cluster}") as client:
        locks(client, name)


async def test_cluster_in_asyncio(cluster: int, name: str) -> None:
    async with redis.asyncio.RedisCluster(host="127.0.0.1", port=cluster) as client:
        await locks_in_asyncio(client, name)


async def test_locks_share_a_client_when_the_nodes_of_the_cluster_change(cluster: int, name: str) -> None:
    async with aclosing(redis.asyncio.RedisCluster(host="127.0.0.1", port=cluster)) as client:
        before = redispy_aio.Lock(client, name)
        assert len(client.nodes_manager.startup_nodes) == 1
        await client.initialize()
        assert len(client.nodes_manager.startup_nodes) > 1
        assert redispy_aio.Lock(client, name)._client is before._client


def test_the_connection_to_a_cluster_is_taken_over() -> None:
    client = redis.asyncio.RedisCluster(
        host="n1", port=7, username="app", password="x", ssl=True, ssl_ca_certs=CA
    )
    url, options = settings_of(client)
    assert url == "rediss+cluster://app:x@n1:7"
    assert dict(options)["tls_ca"] == CA
    redlatch.Client.from_redis(client)


# ---- what is refused ----


def sentinel(**options: Any) -> redis.sentinel.Sentinel:
    return redis.sentinel.Sentinel([("localhost", 1)], **options)


def wanting(**options: Any) -> redis.Redis:
    return redis.Redis(**options)


class Rotating(redis.CredentialProvider):
    def get_credentials(self) -> tuple[str, str]:
        return "app", "of this hour"


class UsernamePasswordOfThisHour(UsernamePasswordCredentialProvider):
    def get_credentials(self) -> tuple[str, str]:
        return "app", "of this hour"


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: wanting(credential_provider=Rotating()), "a Rotating, and redlatch asks no credential provider"),
    (
        lambda: wanting(credential_provider=UsernamePasswordOfThisHour("app", "secret")),
        "a UsernamePasswordOfThisHour, and redlatch asks no credential provider",
    ),
    (lambda: wanting(redis_connect_func=print), "a redis_connect_func, and redlatch logs in by itself"),
    (lambda: wanting(ssl=True, ssl_cert_reqs="none"), "ssl_cert_reqs='none', and redlatch checks"),
    (lambda: wanting(ssl=True, ssl_cert_reqs=ssl.CERT_NONE), "redlatch checks the server's certificate"),
    (lambda: wanting(ssl=True, ssl_ca_path="/etc"), "ssl_ca_path, and redlatch reads a file of"),
    (lambda: wanting(ssl=True, ssl_password="secret"), "ssl_password, and redlatch reads no key"),
    (lambda: wanting(ssl=True, ssl_ciphers="AES"), "ssl_ciphers, and redlatch chooses"),
    (lambda: wanting(ssl=True, ssl_ca_certs="a", ssl_ca_data="b"), "ssl_ca_data, and redlatch takes one"),
    (lambda: wanting(ssl=True, ssl_validate_ocsp=True), "ssl_validate_ocsp, and redlatch asks"),
    (
        lambda: wanting(ssl=True, ssl_min_version=ssl.TLSVersion.TLSv1_3),
        "ssl_min_version=TLSv1_3, and redlatch speaks TLS 1.2",
    ),
    (lambda: sentinel().slave_for("main"), r"a replica, .* give one of Sentinel\.master_for"),
    (lambda: sentinel(force_master_ip="::1").master_for("main"), "a force_master_ip, and redlatch reaches"),
    (lambda: sentinel(min_other_sentinels=2).master_for("main"), "min_other_sentinels, and redlatch asks"),
    (lambda: sentinel(ssl=True).master_for("main"), "TLS, but not to its sentinels, and redlatch encrypts"),
    (
        lambda: sentinel(sentinel_kwargs={"ssl": True}).master_for("main"),
        "TLS, but not to its servers, and redlatch encrypts",
    ),
    (
        lambda: sentinel(sentinel_kwargs={"ssl": True, "ssl_ca_certs": "a"}, ssl=True).master_for("main"),
        "other certificates for its sentinels",
    ),
    (
        lambda: redis.asyncio.RedisCluster(host="n1", port=7, address_remap=lambda address: address),
        "an address_remap, and redlatch reaches",
    ),
]


@pytest.mark.parametrize(("make", "text"), REFUSED)
def test_what_cannot_be_taken_over_is_refused(make: Callable[[], Any], text: str) -> None:
    client = make()
    for refused in (redlatch.Client.from_redis, lambda client: redispy.Lock(client, "a")):
        with pytest.raises(redlatch.InvalidArgumentError, match=text) as caught:
            refused(client)
        # With what to do, and without what is secret.
        assert "; " in str(caught.value)
        assert "secret" not in str(caught.value)


def test_what_is_no_client_is_refused() -> None:
    for client in (object(), "redis://:secret@localhost", None):
        for refused in (redlatch.Client.from_redis, lambda client: redispy.Lock(client, "a")):
            with pytest.raises(TypeError, match=r"is no client of redis-py; give a redis\.Redis") as caught:
                refused(client)
            assert type(client).__name__ in str(caught.value)
            assert "redlatch.Client(url)" in str(caught.value)
            assert "secret" not in str(caught.value)


def test_no_connection_of_theirs_is_used(server: Server, name: str) -> None:
    client = redis.Redis(port=server.port)
    with redlatch.Client.from_redis(client) as ours, ours.lock(name):
        assert client.connection_pool._created_connections == 0
