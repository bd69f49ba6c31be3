"""A message's body is small: by the function that writes it, and by the schema."""

from typing import Any

import psycopg
import pytest
from psycopg.errors import CheckViolation

from db import outbox

INSERT = """
INSERT INTO outbox (message_id, queue, lane, priority, body) VALUES ('shop|1', 'previews', 'shop', 5, %s)
"""
PLACE = {"lane": "shop", "queue": "previews"}
ENVELOPE = 400  # more bytes than a message has around its one short argument


def test_append_takes_a_body_up_to_4_kib(admin: psycopg.Connection[Any]) -> None:
    outbox.append(
        admin, "send_mail", ["x" * (outbox.MAX_BODY_BYTES - ENVELOPE)], lane="shop", queue="previews"
    )
    with pytest.raises(outbox.BodyTooLarge, match="4096 allowed"):
        outbox.append(admin, "send_mail", ["x" * outbox.MAX_BODY_BYTES], **PLACE)
    with pytest.raises(outbox.BodyTooLarge):  # bytes count, not letters
        outbox.append(
            admin, "send_mail", ["\u00e9" * (outbox.MAX_BODY_BYTES // 2)], lane="shop", queue="previews"
        )
    assert admin.execute("SELECT count(*) FROM outbox").fetchone() == (1,)


@pytest.mark.parametrize(("body", "taken"), [("x", False), ("{}", True), ("\u00e9" * 2048, True),
                                             ("\u00e9" * 2048 + "x", False)])  # fmt: skip
def test_the_schema_takes_2_to_4096_bytes(admin: psycopg.Connection[Any], body: str, taken: bool) -> None:
    if taken:
        admin.execute(INSERT, [body])
    else:
        with pytest.raises(CheckViolation):
            admin.execute(INSERT, [body])
