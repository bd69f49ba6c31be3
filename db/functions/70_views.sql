-- What operators and dashboards may see: no names, titles, digests or renderer texts.

DROP VIEW IF EXISTS operator_jobs, operator_events, operator_quarantine, operator_teams, operator_lanes,
  operator_dispatch, operator_remaining, operator_slots, operator_tokens, operator_workers, operator_queues,
  operator_replays, operator_audit, operator_migrations, dispatch_counts, oldest_due;

CREATE VIEW operator_jobs AS
  SELECT id, team, batch, kind, priority, status, dispatch_no, attempt, max_attempts, releases, worker,
         claimed_at, not_before, error_class, cancel_requested_at, created_at, updated_at, finished_at, version
    FROM jobs;

CREATE VIEW operator_events AS
  SELECT job, seq, type, at, who, data - 'error' - 'document' - 'artifact' AS data FROM job_events;

CREATE VIEW operator_quarantine AS
  SELECT id, intent, message_id, queue, lane, priority, job, reason, who, at FROM quarantine;

-- The settings in force of each lane, and who began the pause that is on, and why.
CREATE VIEW operator_lanes AS
  SELECT c.lane, c.version, c.max_running, c.weight, c.rate_per_second, c.burst, c.paused, c.who, c.reason, c.at,
         p.who AS paused_by, p.reason AS paused_reason, p.at AS paused_at
    FROM control c
    LEFT JOIN LATERAL (
      SELECT k.who, k.reason, k.at FROM control k
       WHERE c.paused AND k.lane = c.lane
         AND k.version > coalesce((SELECT max(u.version) FROM control u WHERE u.lane = c.lane AND NOT u.paused), 0)
       ORDER BY k.version LIMIT 1) p ON true
   WHERE NOT EXISTS (SELECT FROM control n WHERE n.lane = c.lane AND n.version > c.version);

CREATE VIEW operator_teams AS
  SELECT t.id, t.max_backlog, t.created_at, l.max_running, l.weight, l.rate_per_second, l.burst, l.paused, l.version,
         l.paused_by, l.paused_reason, l.paused_at
    FROM teams t LEFT JOIN operator_lanes l ON l.lane = t.id;

CREATE VIEW operator_tokens AS
  SELECT id, team, scopes, label, created_at, expires_at, revoked_at FROM tokens;

CREATE VIEW operator_workers AS
  SELECT w.id, w.host, w.pid, w.threads, w.started_at, w.heartbeat_at,
         extract(epoch FROM clock_timestamp() - w.heartbeat_at)::float8 AS silent_seconds,
         (SELECT count(*) FROM jobs j WHERE j.worker = w.id) AS running
    FROM workers w;

CREATE VIEW operator_queues AS SELECT name FROM queues;

CREATE VIEW operator_replays AS
  SELECT id, team, kind, error_class, since, before, most, done, who, reason, begun_at, finished_at FROM replay_runs;

CREATE VIEW operator_audit AS SELECT id, at, who, action, reason, target FROM operator_actions;

CREATE VIEW operator_migrations AS SELECT name, checksum FROM schema_migrations;

-- Each lane's work, from partial indexes that hold only what is unfinished or dead. `delayed`: intents
-- that are not due yet.
CREATE VIEW operator_dispatch AS
  WITH live AS (
    SELECT team, count(*) FILTER (WHERE status = 'queued') AS waiting,
           count(*) FILTER (WHERE status = 'processing') AS running,
           count(*) FILTER (WHERE status = 'retrying') AS retrying
      FROM jobs WHERE status IN ('queued', 'processing', 'retrying') GROUP BY team
  ), dead AS (
    SELECT team, count(*) AS jobs FROM jobs WHERE status = 'dead' GROUP BY team
  ), intents AS (
    SELECT lane, count(*) FILTER (WHERE not_before > clock_timestamp()) AS delayed,
           min(greatest(created_at, not_before)) FILTER (WHERE not_before IS NULL OR not_before <= clock_timestamp()) AS due
      FROM outbox GROUP BY lane
  )
  SELECT l.lane, coalesce(a.waiting, 0) AS waiting, coalesce(a.running, 0) AS running,
         coalesce(a.retrying, 0) AS retrying, coalesce(i.delayed, 0) AS delayed, coalesce(d.jobs, 0) AS dead,
         extract(epoch FROM clock_timestamp() - i.due)::float8 AS oldest_due_seconds
    FROM (SELECT id AS lane FROM teams UNION SELECT lane FROM intents) l
    LEFT JOIN live a ON a.team = l.lane
    LEFT JOIN dead d ON d.team = l.lane
    LEFT JOIN intents i ON i.lane = l.lane;

CREATE VIEW operator_remaining AS
  SELECT team, kind, status, count(*) AS jobs, min(not_before) AS first_due, max(not_before) AS last_due
    FROM jobs WHERE status IN ('queued', 'processing', 'retrying') GROUP BY team, kind, status;

CREATE VIEW operator_slots AS
  SELECT slot_name AS slot, plugin, active, wal_status, safe_wal_size, confirmed_flush_lsn::text AS confirmed_lsn,
         pg_current_wal_lsn()::text AS current_lsn,
         (pg_current_wal_lsn() - confirmed_flush_lsn)::bigint AS lag_bytes,
         (pg_current_wal_lsn() - restart_lsn)::bigint AS retained_bytes
    FROM pg_replication_slots WHERE database = current_database();

CREATE VIEW dispatch_counts AS
  SELECT team, status, count(*) AS jobs FROM jobs GROUP BY team, status;

-- How long the oldest intent that could run now has waited, in seconds: the truth about dispatch. Probes
-- and scrapes ask for it, so it costs the same however long the backlog: ids are in the order of time,
-- delayed intents have an index, and counting ends at 100,000.
CREATE VIEW oldest_due AS
  SELECT greatest(0, extract(epoch FROM t.now - least(a.due, CASE WHEN d.due <= t.now THEN d.due END)))::float8 AS seconds,
         n.intents
    FROM (SELECT clock_timestamp() AS now) t
   CROSS JOIN (SELECT (SELECT o.created_at FROM outbox o WHERE o.not_before IS NULL ORDER BY o.id LIMIT 1) AS due) a
   CROSS JOIN (SELECT min(o.not_before) AS due FROM outbox o) d
   CROSS JOIN (
     SELECT count(*) AS intents
       FROM (SELECT FROM outbox o WHERE o.not_before IS NULL OR o.not_before <= clock_timestamp() LIMIT 100000) o) n;
