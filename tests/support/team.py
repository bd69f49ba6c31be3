"""A team's client of a portal process, and what acceptance wrote."""

import hashlib
import secrets
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from support.postgres import Database
from support.processes import Processes, Running

CREATE_TOKEN = "SELECT create_token(%s, %s, %s, 'test', %s, 'test')"


def token_for(
    database: Database, team: str, *scopes: str, expires_at: str | None = None
) -> tuple[str, uuid.UUID]:
    """Make a token of `team` (made if need be) and return it with its id."""
    text = secrets.token_urlsafe(32)
    digest = hashlib.sha256(text.encode()).digest()
    database.admin.execute("SELECT create_team(%s, 'test')", [team])
    row = database.admin.execute(
        CREATE_TOKEN, [team, digest, list(scopes) or ["submit", "read"], expires_at]
    ).fetchone()
    assert row is not None
    return text, row[0]


@dataclass
class Client:
    """A team's client of one portal."""

    database: Database
    url: str
    team: str
    token: str
    http: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        self.http = httpx.Client(
            base_url=self.url, headers={"Authorization": f"Bearer {self.token}"}, timeout=20, trust_env=False
        )

    def put(self, content: bytes = b"hello") -> str:
        """Put a document and return its digest."""
        answer = self.http.put("/v1/documents", content=content)
        assert answer.status_code in {200, 201}, answer.text
        return str(answer.json()["document"])

    def post(
        self, body: Any = None, *, key: str | None = None, path: str = "/v1/jobs", **headers: str
    ) -> httpx.Response:
        """POST JSON under a key, a new one unless it is given."""
        return self.http.post(
            path, json=body, headers={"Idempotency-Key": key or str(uuid.uuid4()), **headers}
        )

    def job(self, **fields: Any) -> dict[str, Any]:
        """Put a document, ask for its preview, and return the job."""
        answer = self.post({"document": self.put(), "kind": "page", **fields})
        assert answer.status_code == 202, answer.text
        return dict(answer.json())


@dataclass(frozen=True)
class House:
    """A database, and the portal that serves it."""

    database: Database
    portal: Running
    processes: Processes

    def client(self, *scopes: str) -> Client:
        """Return the client of a new team."""
        team = f"team-{secrets.token_hex(6)}"
        return Client(self.database, self.portal.url, team, token_for(self.database, team, *scopes)[0])


ROWS = """
SELECT (SELECT count(*) FROM jobs WHERE team = %(team)s),
       (SELECT count(*) FROM job_events e JOIN jobs j ON j.id = e.job WHERE j.team = %(team)s),
       (SELECT count(*) FROM outbox WHERE lane = %(team)s),
       (SELECT count(*) FROM requests WHERE team = %(team)s),
       (SELECT count(*) FROM batches WHERE team = %(team)s)
"""


def rows(client: Client) -> Mapping[str, int]:
    """Count what acceptance wrote for the client's team."""
    row = client.database.admin.execute(ROWS, {"team": client.team}).fetchone()
    assert row is not None
    return dict(zip(("jobs", "events", "intents", "requests", "batches"), row, strict=True))
