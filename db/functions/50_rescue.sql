-- Rescue: a claim whose worker is lost, or that is older than any render may be. Both are for the caller
-- to find out, by the time that it has watched: no clock of this server decides, since a clock may step.
-- The attempt that ran stays spent; a job without attempts left is dead.
DROP FUNCTION IF EXISTS rescue_jobs(uuid[], timestamptz[], interval, text);  -- judged claims by claimed_at
CREATE OR REPLACE FUNCTION rescue_jobs(
  p_workers uuid[], p_heartbeats timestamptz[], p_jobs uuid[], p_dispatch_nos int[], p_attempts int[], p_who text
) RETURNS TABLE (job uuid, outcome text, worker uuid)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
#variable_conflict use_column
DECLARE
  j jobs%ROWTYPE;
  v_now timestamptz;
  v_dead boolean;
BEGIN
  FOR j IN
    SELECT q.* FROM jobs q
     WHERE q.status = 'processing'
       AND q.worker IS NOT NULL  -- says the same, and lets the planner use jobs_by_worker, which is small
       AND (q.worker IN (
              -- Only a heartbeat that is still the one the caller watched: a worker that woke up keeps its jobs.
              SELECT u.id FROM unnest(p_workers, p_heartbeats) AS u(id, beat)
                LEFT JOIN workers w ON w.id = u.id
               WHERE w.id IS NULL OR w.heartbeat_at = u.beat)
            -- Only the very claim that was watched: not a later one of the same job.
            OR (q.id, q.dispatch_no, q.attempt) IN (
              SELECT u.job, u.dispatch_no, u.attempt
                FROM unnest(p_jobs, p_dispatch_nos, p_attempts) AS u(job, dispatch_no, attempt)))
     ORDER BY q.id
       FOR NO KEY UPDATE OF q SKIP LOCKED
  LOOP
    v_now := clock_timestamp();
    v_dead := j.attempt >= j.max_attempts;
    UPDATE jobs q SET
      status = CASE WHEN j.cancel_requested_at IS NOT NULL THEN 'cancelled'
                    WHEN v_dead THEN 'dead' ELSE 'queued' END::job_status,
      dispatch_no = q.dispatch_no + CASE WHEN v_dead OR j.cancel_requested_at IS NOT NULL THEN 0 ELSE 1 END,
      worker = NULL, claimed_at = NULL, error_class = 'WorkerLost',
      finished_at = CASE WHEN v_dead OR j.cancel_requested_at IS NOT NULL THEN v_now END,
      updated_at = v_now, version = q.version + 1
    WHERE q.id = j.id;
    INSERT INTO job_events (job, seq, type, at, who, data)
    VALUES (j.id, j.version + 1,
            CASE WHEN j.cancel_requested_at IS NOT NULL THEN 'cancelled' WHEN v_dead THEN 'died' ELSE 'rescued' END::event_type,
            v_now, p_who,
            jsonb_build_object('dispatch_no', j.dispatch_no, 'attempt', j.attempt, 'worker', j.worker,
                               'error_class', 'WorkerLost', 'error', 'worker lost'));
    DELETE FROM outbox WHERE message_id = preview_message_id(j.team, j.id, j.dispatch_no);
    IF NOT v_dead AND j.cancel_requested_at IS NULL THEN
      PERFORM put_intents(ARRAY[j.id], NULL);
    END IF;
    RETURN QUERY SELECT j.id,
      CASE WHEN j.cancel_requested_at IS NOT NULL THEN 'cancelled' WHEN v_dead THEN 'died' ELSE 'rescued' END, j.worker;
  END LOOP;
END $$;
