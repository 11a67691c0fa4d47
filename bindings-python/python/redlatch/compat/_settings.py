"""Reads the URL and the options for our client from one of redis-py, or of valkey-py, which is the same in this."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TypeAlias
from urllib.parse import quote, urlencode

from redlatch._typing import RedisClient
from redlatch.exceptions import InvalidArgumentError

Settings: TypeAlias = tuple[str, tuple[tuple[str, Any], ...]]


def settings_of(redis: RedisClient) -> Settings:
    """URL and options of a client that connects to the same place as this one. No I/O."""
    if (manager := getattr(redis, "nodes_manager", None)) is not None:
        return _of_cluster(redis, manager)
    if (pool := getattr(redis, "connection_pool", None)) is None:
        raise TypeError(
            f"{_kind(redis)} is no client of redis-py; give a redis.Redis, redis.RedisCluster or one of redis.asyncio; "
            "redlatch.Client(url) takes a URL"
        )
    given: dict[str, Any] = pool.connection_kwargs
    if _has_base(pool.connection_class, lambda base: base.__module__.partition(".")[0] == "fakeredis"):
        # Its connections name a host that is not there.
        raise InvalidArgumentError(
            f"invalid_argument: {_kind(redis)} has no server, and redlatch needs a real one: give a client of a "
            "redlatch.testing.Server, or of the fixture redlatch_url"
        )
    encrypted = _is_tls(pool.connection_class)
    _refuse_connect_func(redis, given.get("redis_connect_func"))
    options = _options_of(redis, given, encrypted)
    if hasattr(pool, "sentinel_manager"):
        return _sentinel_url(redis, pool, given, encrypted), options
    if path := given.get("path"):
        return _unix_url(path, given.get("db"), *_login(redis, given)), options
    host = (given.get("host") or "localhost", given.get("port") or 6379)
    return _url(redis, "redis", encrypted, given, [host], f"/{given.get('db') or 0}"), options


def _of_cluster(redis: RedisClient, manager: Any) -> Settings:
    given: dict[str, Any] = manager.connection_kwargs
    encrypted = bool(given.get("ssl")) or _is_tls(given.get("connection_class"))
    if manager.address_remap is not None:
        _refuse(
            redis, "an address_remap", "redlatch reaches a node at the address that the cluster has for it"
        )
    _refuse_connect_func(redis, getattr(redis, "user_on_connect_func", None))
    # In an order that stays: the drop-in has one client for each URL.
    hosts = sorted((node.host, node.port) for node in manager.startup_nodes.values())
    return _url(redis, "redis+cluster", encrypted, given, hosts), _options_of(redis, given, encrypted)


def _sentinel_url(redis: RedisClient, pool: Any, given: dict[str, Any], encrypted: bool) -> str:
    manager, service = pool.sentinel_manager, pool.service_name
    if not pool.is_master:
        _refuse(redis, "a replica", "a replica grants no lock", "give one of Sentinel.master_for")
    if getattr(manager, "_force_master_ip", None) is not None:  # which older versions do not have
        _refuse(
            redis,
            "a force_master_ip",
            "redlatch reaches the primary at the address that the sentinels have for it",
        )
    if manager.min_other_sentinels:
        _refuse(redis, "min_other_sentinels", "redlatch asks all sentinels, however many know each other")
    pools = [sentinel.connection_pool for sentinel in manager.sentinels]
    sentinels: list[dict[str, Any]] = [each.connection_kwargs for each in pools]
    for each, of in zip(pools, sentinels, strict=True):
        _refuse_connect_func(redis, of.get("redis_connect_func"))
        if _is_tls(each.connection_class) != encrypted:
            plain = "sentinels" if encrypted else "servers"
            _refuse(
                redis, f"TLS, but not to its {plain}", "redlatch encrypts all connections of a client or none"
            )
        if encrypted and _tls_options(redis, of) != _tls_options(redis, given):
            _refuse(
                redis,
                "other certificates for its sentinels",
                "redlatch has the same for all connections of a client",
            )
    user, password = _login(redis, sentinels[0])
    query = _query(sentinel_user=user, sentinel_password=password)
    hosts = sorted((of["host"], of["port"]) for of in sentinels)
    return _url(redis, "redis+sentinel", encrypted, given, hosts, f"/{service}/{given.get('db') or 0}{query}")


def _kind(redis: RedisClient) -> str:
    """The type, for people: a URL shows its password, a client of older versions does so too, and fills a screen."""
    return f"this {type(redis).__module__}.{type(redis).__qualname__}"


REMEDY = (
    'open a redlatch client with the URL, as "rediss://user:password@host:6379", and give that in its place'
)


def _refuse(redis: RedisClient, what: str, why: str, remedy: str = REMEDY) -> NoReturn:
    raise InvalidArgumentError(f"invalid_argument: {_kind(redis)} has {what}, and {why}; {remedy}")


_TLS_REFUSED = {
    "ssl_ca_path": "redlatch reads a file of authorities (ssl_ca_certs) and no folder",
    "ssl_password": "redlatch reads no key that has a password",
    "ssl_ciphers": "redlatch chooses the ciphers itself",
    "ssl_include_verify_flags": "redlatch has no such flags",
    "ssl_exclude_verify_flags": "redlatch has no such flags",
    "ssl_validate_ocsp": "redlatch asks no OCSP responder",
    "ssl_validate_ocsp_stapled": "redlatch reads no OCSP response",
}
"""Arguments of redis-py's connections that make them safer or possible, and that ours do not have."""


def _refuse_connect_func(redis: RedisClient, function: object) -> None:
    if function is not None:
        _refuse(redis, "a redis_connect_func", "redlatch logs in by itself")


def _options_of(redis: RedisClient, given: dict[str, Any], encrypted: bool) -> tuple[tuple[str, Any], ...]:
    options = _tls_options(redis, given) if encrypted else {}
    if timeout := given.get("socket_connect_timeout"):
        options["connect_timeout"] = timeout
    return tuple(options.items())


def _tls_options(redis: RedisClient, given: dict[str, Any]) -> dict[str, Any]:
    if given.get("ssl_cert_reqs", "required") in (None, "none", 0):  # ssl.CERT_NONE is 0
        _refuse(
            redis,
            f"ssl_cert_reqs={given['ssl_cert_reqs']!r}",
            "redlatch checks the server's certificate",
            "name its authority, by ssl_ca_certs there, and leave ssl_cert_reqs out",
        )
    for name, why in _TLS_REFUSED.items():
        if given.get(name):
            _refuse(redis, name, why)
    if getattr(given.get("ssl_min_version"), "name", "") == "TLSv1_3":
        _refuse(redis, "ssl_min_version=TLSv1_3", "redlatch speaks TLS 1.2 as well")
    authorities, data = given.get("ssl_ca_certs"), given.get("ssl_ca_data")
    if data is not None and (authorities or not isinstance(data, str)):
        _refuse(
            redis,
            "ssl_ca_data",
            "redlatch takes one text of PEM, or one file",
            "put all authorities into one",
        )
    certificate = given.get("ssl_certfile")
    # A certificate's file may hold its key as well.
    found = {
        "tls_ca": authorities or data,
        "tls_cert": certificate,
        "tls_key": given.get("ssl_keyfile") or certificate,
    }
    return {name: value for name, value in found.items() if value}


_FIXED_LOGIN = [f"{name}.credentials.UsernamePasswordCredentialProvider" for name in ("redis", "valkey")]


def _login(redis: RedisClient, given: dict[str, Any]) -> tuple[str, str]:
    provider = given.get("credential_provider")
    if provider is None:
        return _text(given.get("username")), _text(given.get("password"))
    # Not of a class derived from it, which may give another password each time.
    if f"{type(provider).__module__}.{type(provider).__qualname__}" not in _FIXED_LOGIN:
        _refuse(
            redis,
            f"a {type(provider).__qualname__}",
            "redlatch asks no credential provider: it logs in with one user and password, after an outage too",
        )
    return provider.username, provider.password


def _text(value: str | bytes | None) -> str:
    return value.decode() if isinstance(value, bytes) else value or ""


def _is_tls(connection_class: Any) -> bool:
    return _has_base(connection_class, lambda base: base.__name__ == "SSLConnection")


def _has_base(kind: Any, is_it: Callable[[type], bool]) -> bool:
    return kind is not None and any(map(is_it, kind.__mro__))


def _url(
    redis: RedisClient,
    scheme: str,
    encrypted: bool,
    given: dict[str, Any],
    hosts: Iterable[tuple[str, Any]],
    rest: str = "",
) -> str:
    user, password = _login(redis, given)
    login = f"{quote(user, safe='')}:{quote(password, safe='')}@" if user or password else ""
    places = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in hosts)
    return f"{scheme.replace('redis', 'rediss') if encrypted else scheme}://{login}{places}{rest}"


def _unix_url(path: str, database: object, user: str, password: str) -> str:
    return f"unix://{quote(path)}{_query(db=database, user=user, **{'pass': password})}"


def _query(**fields: Any) -> str:
    text = urlencode({key: value for key, value in fields.items() if value}, quote_via=quote)
    return text and f"?{text}"
