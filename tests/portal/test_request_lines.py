"""The line of a request: the short way to the log says what structlog says, and no more."""

from support.hostile import TYPE, good
from support.raw_http import exchange, request_head
from support.team import Client, House
from support.waiting import eventually

SECRET = b"postgres://somebody:canary17@elsewhere/db"


def _asked(client: Client, key: bytes) -> bytes:
    return request_head(
        "POST", "/v1/jobs", client.token, [(b"Idempotency-Key", key), TYPE], good(client.put())
    )


def test_a_key_with_a_secret_in_it_is_masked_and_else_the_lines_are_alike(house: House) -> None:
    client = house.client()
    for key in (b"plain", SECRET):  # the second is what structlog writes
        assert exchange(client.url, _asked(client, key))[0] == 202

    def lines() -> list[dict[str, object]]:
        said = (line for line in house.portal.log_lines() if line["event"] == "answered" and "key" in line)
        return [line for line in said if line["team"] == client.team]

    eventually(lambda: len(lines()) == 2)
    plain, masked = lines()
    assert (plain["key"], masked["key"]) == ("plain", "postgres://somebody:***@elsewhere/db")
    assert "canary17" not in house.portal.log_text()
    assert plain.keys() == masked.keys() == {
        "event", "method", "route", "status", "milliseconds", "trace", "team", "key", "job",
        "process", "level", "logger", "timestamp",
    }  # fmt: skip
    same = ("event", "method", "route", "status", "team", "process", "level", "logger")
    assert [plain[name] for name in same] == [masked[name] for name in same]
    assert [len(str(line["timestamp"])) for line in (plain, masked)] == [27, 27]
