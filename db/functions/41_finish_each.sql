-- Finish of renders that ended together: each fenced like one of finish_jobs (40_settle.sql), all in one
-- statement and one commit.
--
-- Returns a row for each, `n` counting from 1 in the order of the arrays; the outcomes are those of finish_jobs.
-- `busy`: somebody has the job's row (a cancel, a rescue) or its intent's at this moment, and nothing was done about
-- it. Nobody waits for a row: what is held up keeps only its own job, and two calls cannot deadlock over theirs.
CREATE OR REPLACE FUNCTION finish_each(
  p_worker uuid, p_jobs uuid[], p_dispatch_nos int[], p_attempts int[], p_artifacts text[], p_sizes bigint[]
) RETURNS TABLE (n bigint, outcome text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp
-- One plan a session: arrays are planned anew for their lengths at each call, which costs a single finish more
-- than running it. And one that stays right while the tables grow: no table is read whole, and of jobs each join
-- says which ones, so that it reads no others in whatever order it goes.
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
  v_mine uuid[];
  v_intents text[];
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN  -- a call costs more than to ask
    PERFORM need_read_committed();
  END IF;
  -- Statements of their own: the last one's snapshot has whatever the rows' previous holders committed.
  SELECT coalesce(array_agg(k.id), '{}') INTO v_mine
    FROM (SELECT j.id FROM jobs j JOIN outbox o ON o.message_id = preview_message_id(j.team, j.id, j.dispatch_no)
           WHERE j.id = ANY (p_jobs) FOR NO KEY UPDATE OF j SKIP LOCKED FOR UPDATE OF o SKIP LOCKED) k;
  IF cardinality(v_mine) < cardinality(p_jobs) THEN
    -- Somebody has one of them, or has ended it: which jobs are had, which of their intents, and so which are mine.
    SELECT coalesce(array_agg(k.id), '{}') INTO v_mine
      FROM (SELECT j.id FROM jobs j WHERE j.id = ANY (p_jobs) FOR NO KEY UPDATE SKIP LOCKED) k;
    SELECT coalesce(array_agg(k.message_id), '{}') INTO v_intents
      FROM (SELECT o.message_id FROM outbox o
             WHERE o.message_id = ANY (ARRAY(SELECT preview_message_id(j.team, j.id, j.dispatch_no)
                                               FROM jobs j WHERE j.id = ANY (v_mine)))
               FOR UPDATE SKIP LOCKED) k;
    SELECT coalesce(array_agg(j.id), '{}') INTO v_mine
      FROM jobs j
     WHERE j.id = ANY (v_mine)
       AND NOT EXISTS (SELECT FROM outbox o WHERE o.message_id = preview_message_id(j.team, j.id, j.dispatch_no)
                                              AND o.message_id <> ALL (v_intents));
  END IF;
  -- What is decided about a row that is locked stays so, and it is decided before the UPDATE: where that one's
  -- condition speaks of status or worker, it may go by their indexes, through all that ever was in there.
  RETURN QUERY
  WITH input AS MATERIALIZED (
    SELECT u.*, u.job = ANY (v_mine) AS mine, j.id IS NOT NULL AS known,
           j.status = 'processing' AND j.dispatch_no = u.dispatch_no AND j.attempt = u.attempt AND j.worker = p_worker AS fits
      FROM unnest(p_jobs, p_dispatch_nos, p_attempts, p_artifacts, p_sizes) WITH ORDINALITY
        AS u(job, dispatch_no, attempt, artifact, size, n)
      LEFT JOIN LATERAL (SELECT q.id, q.status, q.dispatch_no, q.attempt, q.worker
                           FROM jobs q WHERE q.id = u.job OFFSET 0) j ON true
  ), done AS (
    UPDATE jobs j SET status = 'succeeded', artifact = i.artifact, artifact_size = i.size, worker = NULL,
           claimed_at = NULL, error_class = NULL, finished_at = clock_timestamp(),
           updated_at = clock_timestamp(), version = j.version + 1
      FROM input i
     WHERE i.mine AND i.fits AND j.id = i.job AND j.id = ANY (p_jobs)
    RETURNING j.id, j.team, j.dispatch_no, j.attempt, j.version, j.finished_at, j.artifact, j.artifact_size
  ), told AS (
    INSERT INTO job_events (job, seq, type, at, who, data)
    SELECT d.id, d.version, 'succeeded', d.finished_at, 'worker:' || p_worker,
           jsonb_build_object('dispatch_no', d.dispatch_no, 'attempt', d.attempt, 'worker', p_worker,
                              'artifact', d.artifact, 'artifact_size', d.artifact_size)
      FROM done d
  ), consumed AS (
    DELETE FROM outbox o USING done d WHERE o.message_id = preview_message_id(d.team, d.id, d.dispatch_no)
  )
  SELECT i.n,
         CASE WHEN i.mine AND i.fits THEN 'done'
              WHEN i.known AND NOT i.mine THEN 'busy'
              WHEN EXISTS (SELECT FROM job_events e WHERE e.job = i.job AND e.type = 'succeeded'
                AND e.data @> jsonb_build_object('dispatch_no', i.dispatch_no, 'attempt', i.attempt, 'worker', p_worker))
              THEN 'already'
              ELSE 'lost' END
    FROM input i
   ORDER BY i.n;
END $$;
