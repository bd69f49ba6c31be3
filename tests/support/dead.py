"""Jobs that died: what a worker writes when an attempt is the last one, without a worker."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import psycopg

DIE = """
WITH j AS (
  UPDATE jobs SET status = 'dead', attempt = 1, error_class = %(error)s, finished_at = clock_timestamp(),
         updated_at = clock_timestamp(), version = version + 2
   WHERE id = ANY(%(jobs)s) AND status = 'queued' RETURNING *
), told AS (
  INSERT INTO job_events (job, seq, type, at, who, data)
  SELECT id, version + e.n, e.type, updated_at, 'worker:x', jsonb_build_object(
           'dispatch_no', dispatch_no, 'attempt', 1, 'worker', gen_random_uuid(),
           'error_class', %(error)s::text, 'error', 'a renderer''s text')
    FROM j CROSS JOIN (VALUES (-1, 'claimed'::event_type), (0, 'died')) AS e(n, type)
)
DELETE FROM outbox o USING j WHERE o.message_id = preview_message_id(j.team, j.id, j.dispatch_no)
"""
REPLAYS = "SELECT job, count(*) FROM job_events WHERE type = 'replayed' GROUP BY job"


def die(admin: psycopg.Connection[Any], jobs: Sequence[UUID], error: str = "RenderCrashed") -> None:
    """End queued jobs as a worker would: claimed once, died, intent consumed."""
    admin.execute(DIE, {"jobs": list(jobs), "error": error})


def replays(admin: psycopg.Connection[Any]) -> dict[UUID, int]:
    """Return how often each job was replayed."""
    return dict(admin.execute(REPLAYS).fetchall())
