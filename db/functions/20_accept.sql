-- Acceptance: request key, jobs, `accepted` events and intents in one statement and one commit.
--
-- Returns one row: outcome, the job or batch, its time, and what is wrong.
--   new               all rows are written
--   old               this key has been decided for the same request; nothing is written
--   mismatch          this key has been decided for another request
--   busy              another transaction is deciding this key now; look again later
--   unknown_documents detail = {"items": [0-based indexes]}
--   backlog_full      the caller found the team over its quota, and the key is new
-- Each inner statement has its own snapshot (READ COMMITTED, checked), so a caller that gets the
-- lock sees whatever the previous holder committed.
CREATE OR REPLACE FUNCTION accept_jobs(
  p_team text, p_key text, p_fingerprint bytea, p_batch uuid, p_over_quota boolean,
  p_ids uuid[], p_kinds text[], p_documents text[], p_titles text[], p_priorities smallint[],
  p_max_attempts int[], p_simulate text[], p_traceparent text, p_who text
) RETURNS TABLE (outcome text, job uuid, batch uuid, at timestamptz, detail jsonb)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
#variable_conflict use_column
DECLARE
  r requests%ROWTYPE;
  v_at timestamptz := clock_timestamp();
  v_missing jsonb;
BEGIN
  PERFORM need_read_committed();
  -- A 202 says "on disk": no role or database setting may weaken it. Local to this transaction.
  PERFORM set_config('synchronous_commit', 'on', true);
  IF NOT pg_try_advisory_xact_lock(hashtextextended(p_team || '|' || p_key, 0)) THEN
    RETURN QUERY SELECT 'busy', NULL::uuid, NULL::uuid, NULL::timestamptz, NULL::jsonb;
    RETURN;
  END IF;
  SELECT * INTO r FROM requests q WHERE q.team = p_team AND q.key = p_key;
  IF FOUND THEN
    RETURN QUERY SELECT CASE WHEN r.fingerprint = p_fingerprint THEN 'old' ELSE 'mismatch' END,
                        r.job, r.batch, r.created_at, NULL::jsonb;
    RETURN;
  END IF;
  SELECT jsonb_build_object('items', jsonb_agg(u.n - 1 ORDER BY u.n)) INTO v_missing
    FROM unnest(p_documents) WITH ORDINALITY AS u(digest, n)
   WHERE NOT EXISTS (SELECT FROM documents d WHERE d.team = p_team AND d.digest = u.digest)
  HAVING count(*) > 0;
  IF v_missing IS NOT NULL THEN
    RETURN QUERY SELECT 'unknown_documents', NULL::uuid, NULL::uuid, NULL::timestamptz, v_missing;
    RETURN;
  END IF;
  IF p_over_quota THEN
    RETURN QUERY SELECT 'backlog_full', NULL::uuid, NULL::uuid, NULL::timestamptz, NULL::jsonb;
    RETURN;
  END IF;
  IF p_batch IS NOT NULL THEN
    INSERT INTO batches (id, team, size, created_at) VALUES (p_batch, p_team, cardinality(p_ids), v_at);
  END IF;
  -- An unknown kind is refused by the constraints: joined inwards, its job would be left out of a batch.
  WITH input AS (
    SELECT * FROM unnest(p_ids, p_kinds, p_documents, p_titles, p_priorities, p_max_attempts, p_simulate)
      WITH ORDINALITY AS u(id, kind, document, title, priority, max_attempts, simulate, n)
  ), new_jobs AS (
    INSERT INTO jobs (id, team, batch, kind, document, title, priority, simulate, traceparent, status,
                      dispatch_no, attempt, max_attempts, created_at, updated_at, version)
    SELECT i.id, p_team, p_batch, i.kind, i.document, i.title, i.priority, i.simulate::jsonb, p_traceparent,
           'queued', 1, 0, coalesce(i.max_attempts, k.max_attempts), v_at, v_at, 1
      FROM input i LEFT JOIN kinds k ON k.name = i.kind
     ORDER BY i.n
    RETURNING id, kind, priority, max_attempts
  ), new_events AS (
    INSERT INTO job_events (job, seq, type, at, who, data)
    SELECT i.id, 1, 'accepted', v_at, p_who,
           jsonb_build_object('team', p_team, 'kind', i.kind, 'document', i.document, 'priority', i.priority,
                              'max_attempts', coalesce(i.max_attempts, k.max_attempts), 'batch', p_batch)
      FROM input i LEFT JOIN kinds k ON k.name = i.kind
  )
  INSERT INTO outbox (message_id, queue, lane, priority, body)
  SELECT m.id, k.queue, p_team, i.priority, preview_message(m.id, k.queue, i.id, 1, p_traceparent, v_at)
    FROM input i LEFT JOIN kinds k ON k.name = i.kind
   CROSS JOIN LATERAL (SELECT preview_message_id(p_team, i.id, 1) AS id) m
   ORDER BY i.n;
  INSERT INTO requests (team, key, fingerprint, job, batch, created_at)
  VALUES (p_team, p_key, p_fingerprint, CASE WHEN p_batch IS NULL THEN p_ids[1] END, p_batch, v_at);
  RETURN QUERY SELECT 'new', CASE WHEN p_batch IS NULL THEN p_ids[1] END, p_batch, v_at, NULL::jsonb;
END $$;

-- Is the team at or over its quota of unfinished jobs? Counts no further than the quota.
CREATE OR REPLACE FUNCTION over_quota(p_team text, p_more int) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
  SELECT count(live.one) + p_more > t.max_backlog
    FROM teams t
    LEFT JOIN LATERAL (
      SELECT 1 AS one FROM jobs j
       WHERE j.team = t.id AND j.status IN ('queued', 'processing', 'retrying')
       LIMIT t.max_backlog::bigint + 1) live ON true
   WHERE t.id = p_team
   GROUP BY t.id, t.max_backlog
$$;
