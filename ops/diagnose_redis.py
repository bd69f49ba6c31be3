"""The doctor's checks of Redis: does it answer, will it keep what it is given, is it the primary."""

import time
from collections.abc import Iterator, Mapping
from typing import Any, cast

from redis import Redis
from redis.exceptions import RedisError, ResponseError

from broker.client import redis_client
from broker.lanes import Lanes
from ops import show
from ops.diagnose_postgres import compare_clocks
from ops.diagnosis import Finding, fail, ok, warn
from runtime.settings import Settings

#: The scripts' flags (`#!lua flags=allow-oom`) came with it.
OLDEST = 7
#: A Redis this full refuses the next burst; jobs wait in PostgreSQL meanwhile.
FULL_SHARE = 0.8
TIMEOUT_SECONDS = 2.0
QUEUE = "previews"


def redis_checks(settings: Settings) -> Iterator[Finding]:
    """Judge the server at ONCOMMIT_REDIS_URL."""
    advice = "check ONCOMMIT_REDIS_URL and the server; accepting goes on, and nothing is lost meanwhile"
    try:
        client = redis_client(settings.redis_url.get_secret_value(), timeout=TIMEOUT_SECONDS)
    except ValueError:
        yield fail("Redis", "ONCOMMIT_REDIS_URL is not understood", "write redis://:password@host:6379/0")
        return
    with client:
        try:
            yield from _judge(_info(client))
            yield _clock(client)
            yield _script(client, settings.namespace)
        except (RedisError, OSError) as error:
            # The class alone: a driver's text may hold the URL.
            yield fail("Redis", f"does not answer ({type(error).__name__})", advice)


def _script(client: Redis, namespace: str) -> Finding:
    """Run what relay and workers live by; it only counts."""
    try:
        Lanes(client, namespace).stats(QUEUE, top=1)
    except ResponseError as error:
        return fail(
            "Redis script",
            f"refused ({type(error).__name__})",
            f"give the user of ONCOMMIT_REDIS_URL the keys ~{namespace} and ~{namespace}:*, and the commands "
            "EVAL, EVALSHA, INFO, TIME, BLPOP and those on hashes, sets, sorted sets and lists",
        )
    return ok("Redis script", "it runs")


def _info(client: Redis) -> Mapping[str, Any]:
    # redis-py leaves the options of info() and time() untyped.
    info: Mapping[str, Any] = cast("Any", client).info()
    return info


def _judge(info: Mapping[str, Any]) -> Iterator[Finding]:
    name = "Valkey" if "valkey_version" in info else "Redis"
    version = str(info.get("valkey_version") or info.get("redis_version", "unknown"))
    if name == "Redis" and int(version.split(".", maxsplit=1)[0] or 0) < OLDEST:
        yield fail("Redis", version, f"version {OLDEST} or newer, or Valkey")
    else:
        yield ok("Redis", f"{name} {version}")
    if info.get("role") != "master":
        yield fail("Redis role", "a replica: it takes no writes", "point ONCOMMIT_REDIS_URL at the primary")
    if info.get("cluster_enabled"):
        yield fail(
            "Redis cluster", "on", "use a server that is no cluster: the lanes' script touches many keys"
        )
    yield _policy(str(info.get("maxmemory_policy", "unknown")), int(info.get("maxmemory", 0)))
    most, used = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
    if most and used > most * FULL_SHARE:
        yield warn("Redis memory", f"{show.size(used)} of {show.size(most)}", "raise maxmemory")
    else:
        yield ok("Redis memory", f"{show.size(used)} of {show.size(most) if most else 'no limit'}")
    kept = "append-only file" if info.get("aof_enabled") else "no append-only file"
    yield ok("Redis persistence", f"{kept}; its content is disposable either way")


def _policy(policy: str, most: int) -> Finding:
    if policy == "noeviction":
        return ok("Redis maxmemory-policy", policy)
    advice = "set maxmemory-policy noeviction: evicted messages come back by the audit, minutes late"
    detail = policy if most else f"{policy}, without effect while maxmemory is 0"
    return warn("Redis maxmemory-policy", detail, advice)


def _clock(client: Redis) -> Finding:
    before = time.time()
    seconds, micros = cast("Any", client).time()
    after = time.time()
    theirs = int(seconds) + int(micros) / 1e6
    return compare_clocks("clock of Redis", theirs - (before + after) / 2, after - before)
