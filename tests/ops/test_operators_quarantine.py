"""`oncommit quarantine replay`: what belongs to no job comes back, once, as it was."""

import pytest

from support.desk import Desk, desk

__all__ = ["desk"]

WHY = ("--reason", "repaired", "--who", "alice")
APPEND = "INSERT INTO outbox (message_id, queue, lane, priority, body) VALUES (%s, 'previews', 'red', 3, %s)"
PUT_AWAY = "SELECT quarantine_intent(message_id, 'no such actor', 'relay') FROM outbox"
LEFT = "SELECT message_id, queue, lane, priority, body, not_before FROM outbox"
ACTS = "SELECT who, reason, target ->> 'message_id' FROM operator_actions WHERE action = 'replay_quarantined'"
LOOSEN = "ALTER TABLE outbox DROP CONSTRAINT outbox_body_check"
TIGHTEN = "ALTER TABLE outbox ADD CONSTRAINT outbox_body_check CHECK (octet_length(body) BETWEEN 2 AND 4096)"


def put_away(desk: Desk, message_id: str = "red|receipt-1", body: str = '{"queue_name":"previews"}') -> str:
    """Append a message by another hand, quarantine it, and return its number."""
    desk.admin.execute("INSERT INTO teams (id) VALUES ('red') ON CONFLICT DO NOTHING")
    desk.admin.execute(APPEND, [message_id, body])
    desk.admin.execute(PUT_AWAY)
    return str(desk.json("quarantine", "list")[0]["id"])


def test_a_message_of_no_job_comes_back_once_under_its_id_and_is_audited(desk: Desk) -> None:
    number = put_away(desk)
    assert desk.json("quarantine", "replay", number, *WHY)["outcome"] == "replayed"
    row = ("red|receipt-1", "previews", "red", 3, '{"queue_name":"previews"}', None)
    assert desk.admin.execute(LEFT).fetchall() == [row]
    assert desk.json("quarantine", "list") == []
    assert "put back before" in desk.ok("quarantine", "replay", number, *WHY)
    assert desk.admin.execute(LEFT).fetchall() == [row]
    assert desk.admin.execute(ACTS).fetchall() == [("alice", "repaired", "red|receipt-1")]


def test_a_jobs_message_is_left_to_the_jobs_replay(desk: Desk) -> None:
    desk.accept()
    desk.admin.execute(PUT_AWAY)
    (row,) = desk.json("quarantine", "list")
    done = desk.run("quarantine", "replay", str(row["id"]), *WHY)
    assert (done.returncode, "dead replay" in done.stdout) == (1, True)
    assert desk.admin.execute(LEFT).fetchall() == []


@pytest.mark.parametrize(
    ("body", "told"),
    [("x" * 5000, "may have lost its end"), ("x", "outbox_body_check")],
    ids=["cut", "refused"],
)
def test_what_the_outbox_would_not_take_is_refused_and_stays(desk: Desk, body: str, told: str) -> None:
    desk.admin.execute(LOOSEN)
    number = put_away(desk, body=body)
    desk.admin.execute(TIGHTEN)
    done = desk.run("quarantine", "replay", number, *WHY)
    assert (done.returncode, told in done.stdout) == (1, True), done.stdout
    assert [row["id"] for row in desk.json("quarantine", "list")] == [int(number)]
    assert desk.admin.execute(ACTS).fetchall() == []


def test_a_message_that_is_alive_or_unknown_is_not_put_back(desk: Desk) -> None:
    number = put_away(desk)
    desk.admin.execute(APPEND, ["red|receipt-1", "{}"])
    assert "is alive" in desk.ok("quarantine", "replay", number, *WHY)
    assert desk.run("quarantine", "replay", "999999", *WHY).returncode == 1
    assert desk.run("quarantine", "replay", number).returncode == 2, "no reason, no act"
    assert len(desk.admin.execute(LEFT).fetchall()) == 1
