-- Acceptance of single jobs that arrived together: each a request with a key, an outcome and rows of its own,
-- all in one statement and one commit. What accept_jobs (20_accept.sql) is for one request, this is for many.
--
-- Returns a row for each request, `n` counting from 1 in the order of the arrays; the outcomes are those of
-- accept_jobs. `busy`: another transaction is deciding the key, or an earlier request of this very call has it.
-- Nobody waits for a key: a lock is had at once or not at all, so two calls cannot deadlock over theirs, and
-- a key that somebody holds keeps only its own request.
CREATE OR REPLACE FUNCTION accept_each(
  p_teams text[], p_keys text[], p_fingerprints bytea[], p_over_quota boolean[], p_ids uuid[], p_kinds text[],
  p_documents text[], p_titles text[], p_priorities smallint[], p_max_attempts int[], p_simulate text[],
  p_traceparents text[], p_who text[]
) RETURNS TABLE (n bigint, outcome text, job uuid, at timestamptz, max_attempts int)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp
-- One plan a session, and one that stays right while the tables grow: see finish_jobs (40_settle.sql).
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
  v_at timestamptz := clock_timestamp();
  v_mine boolean[];
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN  -- a call costs more than to ask
    PERFORM need_read_committed();
  END IF;
  -- A 202 says "on disk": no role or database setting may weaken it. Local to this transaction.
  PERFORM set_config('synchronous_commit', 'on', true);
  -- A statement of its own: the next one's snapshot has whatever the keys' previous holders committed. A key
  -- that comes twice would be had twice, since a transaction's locks are its own.
  SELECT array_agg(k.mine ORDER BY k.n) INTO v_mine
    FROM (SELECT u.n,
                 CASE WHEN u.times = 1
                      THEN pg_try_advisory_xact_lock(hashtextextended(u.team || '|' || u.key, 0))
                      ELSE false END AS mine
            FROM (SELECT w.n, w.team, w.key, row_number() OVER (PARTITION BY w.team, w.key ORDER BY w.n) AS times
                    FROM unnest(p_teams, p_keys) WITH ORDINALITY AS w(team, key, n)) u) k;
  RETURN QUERY
  WITH asked AS MATERIALIZED (
    SELECT u.*, k.queue, coalesce(u.most, k.max_attempts) AS attempts, r.job AS decided, r.created_at AS decided_at,
           CASE WHEN NOT u.mine THEN 'busy'
                WHEN r.fingerprint = u.fingerprint THEN 'old'
                WHEN r.fingerprint IS NOT NULL THEN 'mismatch'
                WHEN NOT EXISTS (SELECT FROM documents d WHERE d.team = u.team AND d.digest = u.document)
                THEN 'unknown_documents'
                WHEN u.over THEN 'backlog_full'
                ELSE 'new' END AS outcome
      FROM unnest(v_mine, p_teams, p_keys, p_fingerprints, p_over_quota, p_ids, p_kinds, p_documents, p_titles,
                  p_priorities, p_max_attempts, p_simulate, p_traceparents, p_who) WITH ORDINALITY
        AS u(mine, team, key, fingerprint, over, id, kind, document, title, priority, most, simulate,
             traceparent, who, n)
      LEFT JOIN kinds k ON k.name = u.kind
      LEFT JOIN requests r ON r.team = u.team AND r.key = u.key
  ), new_jobs AS (
    INSERT INTO jobs (id, team, kind, document, title, priority, simulate, traceparent, status, dispatch_no,
                      attempt, max_attempts, created_at, updated_at, version)
    SELECT a.id, a.team, a.kind, a.document, a.title, a.priority, a.simulate::jsonb, a.traceparent,
           'queued', 1, 0, a.attempts, v_at, v_at, 1
      FROM asked a WHERE a.outcome = 'new' ORDER BY a.n
  ), new_events AS (
    INSERT INTO job_events (job, seq, type, at, who, data)
    SELECT a.id, 1, 'accepted', v_at, a.who,
           jsonb_build_object('team', a.team, 'kind', a.kind, 'document', a.document, 'priority', a.priority,
                              'max_attempts', a.attempts, 'batch', NULL)
      FROM asked a WHERE a.outcome = 'new'
  ), new_intents AS (
    INSERT INTO outbox (message_id, queue, lane, priority, body)
    SELECT m.id, a.queue, a.team, a.priority, preview_message(m.id, a.queue, a.id, 1, a.traceparent, v_at)
      FROM asked a CROSS JOIN LATERAL (SELECT preview_message_id(a.team, a.id, 1) AS id) m
     WHERE a.outcome = 'new' ORDER BY a.n
  ), new_requests AS (
    INSERT INTO requests (team, key, fingerprint, job, batch, created_at)
    SELECT a.team, a.key, a.fingerprint, a.id, NULL, v_at FROM asked a WHERE a.outcome = 'new'
  )
  SELECT a.n, a.outcome,
         CASE a.outcome WHEN 'new' THEN a.id WHEN 'old' THEN a.decided END,
         CASE a.outcome WHEN 'new' THEN v_at WHEN 'old' THEN a.decided_at END,
         CASE a.outcome WHEN 'new' THEN a.attempts END
    FROM asked a ORDER BY a.n;
END $$;
