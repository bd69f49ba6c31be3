"""An example of each resource, for the description: those of one team, and of one document's preview."""

from collections.abc import Mapping
from typing import Any

from portal.answers import TRACE
from portal.problems import Problem, document

ID = "019a5b1e-9f0c-7b55-9c0e-8f0f6c6f7a10"
BATCH_ID = "019a5b1e-a1d4-7c02-8a3f-5d0c2b7e4f11"
TEAM = "acme"
DIGEST = "sha256:" + "9f" * 32
AT = "2026-03-02T09:30:00.125000+00:00"
ENDED = "2026-03-02T09:30:01.480000+00:00"

JOB_REQUEST: Mapping[str, Any] = {"document": DIGEST, "kind": "page", "priority": 5, "title": "Annual report"}
LINES = f'{{"document": "{DIGEST}", "kind": "page"}}\n{{"document": "{DIGEST}", "kind": "thumbnail"}}\n'

JOB: Mapping[str, Any] = {
    "id": ID,
    "team": TEAM,
    "batch": None,
    "kind": "page",
    "document": DIGEST,
    "title": "Annual report",
    "priority": 5,
    "status": "succeeded",
    "dispatch_no": 1,
    "attempt": 1,
    "max_attempts": 5,
    "artifact": "sha256:" + "c4" * 32,
    "artifact_size": 48_213,
    "error_class": None,
    "not_before": None,
    "cancel_requested_at": None,
    "created_at": AT,
    "updated_at": ENDED,
    "finished_at": ENDED,
    "version": 3,
    "links": {
        "self": f"/v1/jobs/{ID}",
        "events": f"/v1/jobs/{ID}/events",
        "preview": f"/v1/jobs/{ID}/preview",
    },
}
EVENT: Mapping[str, Any] = {"seq": 1, "type": "accepted", "at": AT, "who": f"token:{ID}", "data": {}}
BATCH: Mapping[str, Any] = {
    "id": BATCH_ID,
    "team": TEAM,
    "size": 2,
    "created_at": AT,
    "finished": False,
    "counts": {"queued": 1, "processing": 0, "retrying": 0, "succeeded": 1, "dead": 0, "cancelled": 0},
    "events": 4,
    "links": {
        "self": f"/v1/batches/{BATCH_ID}",
        "events": f"/v1/batches/{BATCH_ID}/events",
        "jobs": f"/v1/jobs?batch={BATCH_ID}",
    },
}
#: By the name of the model.
MODELS: Mapping[str, Any] = {
    "Job": JOB,
    "JobPage": {"jobs": [JOB], "next": None},
    "JobEvent": EVENT,
    "JobEvents": {"events": [EVENT], "next": None},
    "Batch": BATCH,
    "Document": {"document": DIGEST, "size": 182_044},
    "Problem": document(Problem("not-found"), TRACE),
}
