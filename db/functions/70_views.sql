-- What operators and dashboards may see: no names, titles, digests or renderer texts.

DROP VIEW IF EXISTS operator_jobs, operator_events, operator_quarantine, operator_teams, dispatch_counts, oldest_due;

CREATE VIEW operator_jobs AS
  SELECT id, team, batch, kind, priority, status, dispatch_no, attempt, max_attempts, releases, worker,
         claimed_at, not_before, error_class, cancel_requested_at, created_at, updated_at, finished_at, version
    FROM jobs;

CREATE VIEW operator_events AS
  SELECT job, seq, type, at, who, data - 'error' - 'document' - 'artifact' AS data FROM job_events;

CREATE VIEW operator_quarantine AS
  SELECT id, intent, message_id, queue, lane, priority, job, reason, who, at FROM quarantine;

CREATE VIEW operator_teams AS
  SELECT t.id, t.max_backlog, t.created_at, c.max_running, c.weight, c.rate_per_second, c.burst, c.paused, c.version
    FROM teams t
    LEFT JOIN LATERAL (SELECT * FROM control k WHERE k.lane = t.id ORDER BY k.version DESC LIMIT 1) c ON true;

CREATE VIEW dispatch_counts AS
  SELECT team, status, count(*) AS jobs FROM jobs GROUP BY team, status;

-- How long the oldest intent that could run now has waited, in seconds: the truth about dispatch.
CREATE VIEW oldest_due AS
  SELECT coalesce(extract(epoch FROM clock_timestamp() - min(greatest(o.created_at, o.not_before))), 0)::float8 AS seconds,
         count(*) AS intents
    FROM outbox o
   WHERE o.not_before IS NULL OR o.not_before <= clock_timestamp();
