-- Settle: how a claim ends. Every one is fenced by (dispatch number, attempt, worker), deletes the
-- consumed intent in the same transaction, and writes its event in the same statement.
--
-- Outcomes: done | already (this very call took before; its reply was lost) | lost (not this worker's
-- claim any more: nothing is changed).

CREATE OR REPLACE FUNCTION finish_jobs(
  p_worker uuid, p_jobs uuid[], p_dispatch_nos int[], p_attempts int[], p_artifacts text[], p_sizes bigint[]
) RETURNS TABLE (job uuid, dispatch_no int, outcome text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp
-- Arrays are planned anew for their lengths at each call, which costs a single finish more than running it.
-- But a plan that is kept from when the tables were small would read them whole until they are analyzed.
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
#variable_conflict use_column
BEGIN
  -- A statement of its own: whoever waited here for another call looks, below, with a snapshot in which
  -- that call has ended. In one order, so that two arrays cannot deadlock.
  PERFORM FROM jobs j WHERE j.id = ANY (p_jobs) ORDER BY j.id FOR NO KEY UPDATE;
  RETURN QUERY
  WITH input AS (
    SELECT * FROM unnest(p_jobs, p_dispatch_nos, p_attempts, p_artifacts, p_sizes)
      AS u(job, dispatch_no, attempt, artifact, size)
  ), done AS (
    UPDATE jobs j SET status = 'succeeded', artifact = i.artifact, artifact_size = i.size, worker = NULL,
           claimed_at = NULL, error_class = NULL, finished_at = clock_timestamp(),
           updated_at = clock_timestamp(), version = j.version + 1
      FROM input i
     WHERE j.id = i.job AND j.status = 'processing' AND j.dispatch_no = i.dispatch_no
       AND j.attempt = i.attempt AND j.worker = p_worker
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
  SELECT i.job, i.dispatch_no,
         CASE WHEN d.id IS NOT NULL THEN 'done'
              WHEN EXISTS (SELECT FROM job_events e WHERE e.job = i.job AND e.type = 'succeeded'
                AND e.data @> jsonb_build_object('dispatch_no', i.dispatch_no, 'attempt', i.attempt, 'worker', p_worker))
              THEN 'already'
              ELSE 'lost' END
    FROM input i
    LEFT JOIN done d ON d.id = i.job;
END $$;

-- End one claim otherwise. p_how:
--   failed     the attempt is spent; retrying, with the next dispatch after p_delay_ms
--   died       the attempt is spent; dead
--   released   queued again after p_delay_ms; the attempt is given back unless p_spend
--   cancelled  the claim was asked to stop
-- A claim that was asked to cancel ends cancelled, and one whose last attempt is spent died, whatever
-- the caller said: there is no further dispatch.
CREATE OR REPLACE FUNCTION end_claim(
  p_worker uuid, p_job uuid, p_dispatch_no int, p_attempt int, p_how text,
  p_error_class text, p_error text, p_delay_ms bigint, p_spend boolean, p_who text
) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
  j jobs%ROWTYPE;
  v_now timestamptz;
  v_due timestamptz;
  v_how text := p_how;
  v_refund int;
  v_again boolean;
  v_error_class text;
  v_old_message text;
BEGIN
  IF p_how NOT IN ('failed', 'died', 'released', 'cancelled') THEN
    RAISE EXCEPTION 'end_claim: unknown way %', p_how USING ERRCODE = 'invalid_parameter_value';
  END IF;
  SELECT * INTO j FROM jobs WHERE id = p_job FOR NO KEY UPDATE;
  IF NOT FOUND OR j.status <> 'processing' OR j.dispatch_no <> p_dispatch_no
     OR j.attempt <> p_attempt OR j.worker IS DISTINCT FROM p_worker THEN
    -- The event of this very claim's end, if there is one, says that this call took before.
    IF EXISTS (SELECT FROM job_events e WHERE e.job = p_job AND e.type IN (p_how::event_type, 'cancelled', 'died')
                AND e.data @> jsonb_build_object('dispatch_no', p_dispatch_no, 'attempt', p_attempt, 'worker', p_worker)) THEN
      RETURN 'already';
    END IF;
    RETURN 'lost';
  END IF;
  -- Not before the lock: an event that was waited for would be later than this one.
  v_now := clock_timestamp();
  v_due := CASE WHEN p_delay_ms > 0 THEN v_now + p_delay_ms * interval '1 ms' END;
  IF j.cancel_requested_at IS NOT NULL THEN
    v_how := 'cancelled';
  ELSIF j.attempt >= j.max_attempts AND (p_how = 'failed' OR p_how = 'released' AND p_spend) THEN
    v_how := 'died';
  END IF;
  v_refund := CASE WHEN v_how = 'released' AND NOT p_spend THEN 1 ELSE 0 END;
  v_again := v_how IN ('failed', 'released');
  v_error_class := coalesce(p_error_class, CASE WHEN v_how = 'died' THEN coalesce(j.error_class, 'Unknown') END);
  v_old_message := preview_message_id(j.team, j.id, j.dispatch_no);
  UPDATE jobs SET
    status = CASE v_how WHEN 'failed' THEN 'retrying' WHEN 'died' THEN 'dead'
                        WHEN 'released' THEN 'queued' ELSE 'cancelled' END::job_status,
    dispatch_no = dispatch_no + CASE WHEN v_again THEN 1 ELSE 0 END,
    attempt = attempt - v_refund,
    releases = releases + CASE WHEN v_how = 'released' THEN 1 ELSE 0 END,
    worker = NULL, claimed_at = NULL,
    not_before = CASE WHEN v_again THEN v_due END,
    error_class = coalesce(v_error_class, error_class),
    finished_at = CASE WHEN NOT v_again THEN v_now END,
    updated_at = v_now, version = version + 1
  WHERE id = p_job;
  INSERT INTO job_events (job, seq, type, at, who, data)
  VALUES (p_job, j.version + 1, v_how::event_type, v_now, p_who,
          jsonb_strip_nulls(jsonb_build_object(
            'dispatch_no', p_dispatch_no, 'attempt', p_attempt, 'worker', p_worker,
            'error_class', v_error_class, 'error', p_error,
            'not_before', CASE WHEN v_again THEN v_due END,
            'refunded', CASE WHEN v_how = 'released' THEN v_refund = 1 END)));
  DELETE FROM outbox WHERE message_id = v_old_message;
  IF v_again THEN
    PERFORM put_intents(ARRAY[p_job], v_due);
  END IF;
  RETURN 'done';
END $$;
