-- Housekeeping that an operator asks for. Nothing expires by itself.

-- How much prune_jobs() would take now: (jobs, whole batches among them).
CREATE OR REPLACE FUNCTION prunable(p_before timestamptz, p_dead boolean)
RETURNS TABLE (jobs bigint, batches bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
  WITH whole AS (
    SELECT j.batch, count(*) AS jobs FROM jobs j WHERE j.batch IS NOT NULL GROUP BY j.batch
    HAVING bool_and(coalesce(j.finished_at < p_before, false) AND (p_dead OR j.status <> 'dead'))
  )
  SELECT (SELECT count(*) FROM jobs j
           WHERE j.batch IS NULL AND j.finished_at < p_before AND (p_dead OR j.status <> 'dead'))
         + (SELECT coalesce(sum(w.jobs), 0) FROM whole w)::bigint,
         (SELECT count(*) FROM whole)
$$;

-- Delete one slice of what ended before p_before: up to p_limit single jobs, or one batch, which goes
-- whole or not at all, with their events, requests and quarantined messages. Dead jobs are kept unless
-- p_dead. The last slice takes the rest: superseded settings, workers, finished replays.
--
-- A slice begins after the place that the one before returned: (at_end, at_job) among single jobs, then
-- at_batch. So what may not go costs one look, and never ends the work early. `more`: call again.
DROP FUNCTION IF EXISTS prune_jobs(timestamptz, boolean, int, text, text);  -- had no place to go on from
CREATE OR REPLACE FUNCTION prune_jobs(
  p_before timestamptz, p_dead boolean, p_limit int, p_at_end timestamptz, p_at_job uuid, p_at_batch uuid,
  p_who text, p_reason text
) RETURNS TABLE (jobs int, events int, requests int, batches int, rest int,
                 at_end timestamptz, at_job uuid, at_batch uuid, more boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
#variable_conflict use_column
DECLARE
  v_jobs uuid[];
  v_batch uuid;
  v_last uuid;
  v_count int;
BEGIN
  jobs := 0; events := 0; requests := 0; batches := 0; rest := 0;
  at_end := p_at_end; at_job := p_at_job; at_batch := p_at_batch; more := true;
  IF at_end < 'infinity' THEN
    WITH slice AS (
      SELECT j.id, j.finished_at FROM jobs j
       WHERE j.batch IS NULL AND j.finished_at < p_before AND (p_dead OR j.status <> 'dead')
         AND (j.finished_at, j.id) > (p_at_end, p_at_job)
       ORDER BY j.finished_at, j.id LIMIT p_limit FOR UPDATE SKIP LOCKED)
    SELECT array_agg(s.id ORDER BY s.finished_at, s.id), max(s.finished_at) INTO v_jobs, at_end FROM slice s;
    at_job := v_jobs[cardinality(v_jobs)];
    IF v_jobs IS NULL THEN
      at_end := 'infinity'; at_job := p_at_job;
    END IF;
  ELSE
    -- A page of batches, and the first of them that may go.
    WITH page AS (
      SELECT b.id, b.created_at FROM batches b WHERE b.id > p_at_batch ORDER BY b.id LIMIT p_limit
    ), ended AS (
      SELECT g.id FROM page g
       WHERE g.created_at < p_before
         AND NOT EXISTS (SELECT FROM jobs j WHERE j.batch = g.id AND j.status IN ('queued', 'processing', 'retrying'))
         AND (p_dead OR NOT EXISTS (SELECT FROM jobs j WHERE j.batch = g.id AND j.status = 'dead'))
         AND NOT EXISTS (SELECT FROM jobs j WHERE j.batch = g.id AND j.finished_at >= p_before)
       ORDER BY g.id LIMIT 1)
    SELECT (SELECT d.id FROM ended d), (SELECT g.id FROM page g ORDER BY g.id DESC LIMIT 1) INTO v_batch, v_last;
    at_batch := coalesce(v_batch, v_last, p_at_batch);
    more := v_last IS NOT NULL;
    PERFORM FROM batches b WHERE b.id = v_batch FOR UPDATE;
    -- Locked first, looked at again after: one of its dead may have been replayed meanwhile.
    PERFORM FROM jobs j WHERE j.batch = v_batch ORDER BY j.id FOR UPDATE;
    SELECT array_agg(j.id) INTO v_jobs FROM jobs j WHERE j.batch = v_batch
    HAVING bool_and(coalesce(j.finished_at < p_before, false) AND (p_dead OR j.status <> 'dead'));
  END IF;
  IF NOT more THEN
    rest := prune_rest(p_before, p_dead);
  ELSIF v_jobs IS NOT NULL THEN
    DELETE FROM quarantine q WHERE q.job = ANY (v_jobs);
    DELETE FROM requests q WHERE q.job = ANY (v_jobs);
    GET DIAGNOSTICS requests = ROW_COUNT;
    PERFORM set_config('oncommit.pruning', 'on', true);  -- the append-only trigger lets these go
    DELETE FROM job_events e WHERE e.job = ANY (v_jobs);
    GET DIAGNOSTICS events = ROW_COUNT;
    PERFORM set_config('oncommit.pruning', 'off', true);
    DELETE FROM jobs j WHERE j.id = ANY (v_jobs);
    GET DIAGNOSTICS jobs = ROW_COUNT;
    IF v_batch IS NOT NULL THEN
      DELETE FROM requests q WHERE q.batch = v_batch;
      GET DIAGNOSTICS v_count = ROW_COUNT;
      requests := requests + v_count;
      DELETE FROM batches b WHERE b.id = v_batch;
      GET DIAGNOSTICS batches = ROW_COUNT;
    END IF;
  END IF;
  IF jobs + rest > 0 THEN
    INSERT INTO operator_actions (who, action, reason, target)
    VALUES (p_who, 'prune', p_reason, jsonb_build_object(
      'before', p_before, 'dead', p_dead, 'jobs', jobs, 'events', events, 'requests', requests,
      'batches', batches, 'rest', rest));
  END IF;
  RETURN NEXT;
END $$;

-- Internal. Returns how many rows.
CREATE OR REPLACE FUNCTION prune_rest(p_before timestamptz, p_dead boolean) RETURNS int
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
  v_sum int := 0;
  v_count int;
BEGIN
  -- The row that began a pause says who and why: a paused lane keeps its history.
  DELETE FROM control c USING (SELECT DISTINCT ON (k.lane) k.lane, k.version, k.paused FROM control k
                                ORDER BY k.lane, k.version DESC) latest
   WHERE c.lane = latest.lane AND c.version < latest.version AND NOT latest.paused AND c.at < p_before;
  GET DIAGNOSTICS v_count = ROW_COUNT;
  v_sum := v_sum + v_count;
  DELETE FROM workers w WHERE w.heartbeat_at < p_before AND NOT EXISTS (SELECT FROM jobs j WHERE j.worker = w.id);
  GET DIAGNOSTICS v_count = ROW_COUNT;
  v_sum := v_sum + v_count;
  -- One that may still be going on stays: the same words find it for a day, see begin_replay().
  DELETE FROM replay_runs r
   WHERE r.finished_at < p_before
      OR r.finished_at IS NULL AND r.begun_at < least(p_before, clock_timestamp() - interval '1 day');
  GET DIAGNOSTICS v_count = ROW_COUNT;
  v_sum := v_sum + v_count;
  IF p_dead THEN
    DELETE FROM quarantine q WHERE q.job IS NULL AND q.at < p_before;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    v_sum := v_sum + v_count;
  END IF;
  RETURN v_sum;
END $$;

-- A page of succeeded jobs with the digests that an artifact is checked by; the document's only where it
-- is to be made again. The one place where an operator gets digests, so each page is kept in the audit.
CREATE OR REPLACE FUNCTION artifacts_page(p_after uuid, p_limit int, p_repair boolean, p_who text, p_reason text)
RETURNS TABLE (job uuid, kind text, artifact text, artifact_size bigint, document text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
#variable_conflict use_column
BEGIN
  INSERT INTO operator_actions (who, action, reason, target)
  VALUES (p_who, CASE WHEN p_repair THEN 'repair_artifacts' ELSE 'verify_artifacts' END, p_reason,
          jsonb_build_object('after', p_after, 'limit', p_limit));
  RETURN QUERY
    SELECT j.id, j.kind, j.artifact, j.artifact_size, CASE WHEN p_repair THEN j.document END
      FROM jobs j WHERE j.id > p_after AND j.status = 'succeeded' ORDER BY j.id LIMIT p_limit;
END $$;
