-- Replay of dead jobs: same job, next dispatch, fresh attempts. Two roads, one by ids and one by
-- filters, over one transition; the events, the intents and the operator_actions row are one
-- transaction with the change.

-- The transition. Internal. Returns the ids of those that were dead.
CREATE OR REPLACE FUNCTION replay_dead(p_jobs uuid[], p_run uuid, p_who text, p_reason text) RETURNS uuid[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
  v_done uuid[];
BEGIN
  WITH locked AS (
    -- In one order, so that two replays cannot deadlock; the loser finds the row not dead any more.
    SELECT j.id, j.attempt, j.dispatch_no FROM jobs j
     WHERE j.id = ANY (p_jobs) AND j.status = 'dead' ORDER BY j.id FOR NO KEY UPDATE
  ), changed AS (
    UPDATE jobs j SET status = 'queued', dispatch_no = j.dispatch_no + 1, attempt = 0, releases = 0,
           error_class = NULL, not_before = NULL, finished_at = NULL, cancel_requested_at = NULL,
           updated_at = clock_timestamp(), version = j.version + 1
      FROM locked l WHERE j.id = l.id
    RETURNING j.id, j.version, j.updated_at, l.attempt, l.dispatch_no
  ), told AS (
    INSERT INTO job_events (job, seq, type, at, who, data)
    SELECT c.id, c.version, 'replayed', c.updated_at, p_who,
           jsonb_strip_nulls(jsonb_build_object(
             'dispatch_no', c.dispatch_no, 'attempt', c.attempt, 'reason', p_reason, 'run', p_run))
      FROM changed c
  )
  SELECT coalesce(array_agg(c.id ORDER BY c.id), '{}') INTO v_done FROM changed c;
  IF cardinality(v_done) > 0 THEN
    PERFORM put_intents(v_done, NULL);
    INSERT INTO operator_actions (who, action, reason, target)
    VALUES (p_who, 'replay', p_reason,
            jsonb_strip_nulls(jsonb_build_object('run', p_run, 'jobs', to_jsonb(v_done))));
  END IF;
  RETURN v_done;
END $$;

-- Replay these. One row per id: replayed | already <status> | unknown.
CREATE OR REPLACE FUNCTION replay_jobs(p_jobs uuid[], p_who text, p_reason text)
RETURNS TABLE (job uuid, outcome text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
#variable_conflict use_column
DECLARE
  v_done uuid[] := replay_dead(p_jobs, NULL, p_who, p_reason);
BEGIN
  RETURN QUERY
    SELECT u.id, CASE WHEN u.id = ANY (v_done) THEN 'replayed'
                      WHEN j.id IS NULL THEN 'unknown' ELSE 'already ' || j.status END
      FROM unnest(p_jobs) AS u(id) LEFT JOIN jobs j ON j.id = u.id;
END $$;

-- Begin a run, or find the unfinished one that the same words began less than a day ago (unless
-- p_afresh): so a command that was killed may simply be given again.
CREATE OR REPLACE FUNCTION begin_replay(
  p_asked jsonb, p_team text, p_kind text, p_error text, p_since timestamptz, p_most int, p_afresh boolean,
  p_who text, p_reason text
) RETURNS uuid
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
  v_run uuid;
BEGIN
  PERFORM need_read_committed();
  -- Given twice at once, the words are one run too.
  PERFORM pg_advisory_xact_lock(hashtextextended('oncommit begin_replay', 0));
  IF NOT p_afresh THEN
    SELECT r.id INTO v_run FROM replay_runs r
     WHERE r.asked = p_asked AND r.finished_at IS NULL AND r.begun_at > clock_timestamp() - interval '1 day'
     ORDER BY r.begun_at DESC LIMIT 1;
    IF FOUND THEN
      RETURN v_run;
    END IF;
  END IF;
  INSERT INTO replay_runs (asked, team, kind, error_class, since, before, most, who, reason)
  -- Everything that is dead now, also what died by a clock that has been set back since.
  VALUES (p_asked, p_team, p_kind, p_error, p_since,
          greatest(clock_timestamp(), (SELECT max(j.finished_at) FROM jobs j) + interval '1 microsecond'),
          p_most, p_who, p_reason)
  RETURNING id INTO v_run;
  INSERT INTO operator_actions (who, action, reason, target)
  VALUES (p_who, 'begin_replay', p_reason, jsonb_build_object('run', v_run, 'asked', p_asked));
  RETURN v_run;
END $$;

-- Replay the next p_size jobs of a run, team by team, oldest first. `more`: there may be others, also
-- those that somebody else had locked; nothing replayed and more means: wait a moment.
CREATE OR REPLACE FUNCTION replay_slice(p_run uuid, p_size int, p_who text, p_reason text)
RETURNS TABLE (replayed int, done int, more boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp
-- The planner takes the filters for selective and would fetch and sort all dead jobs for each slice;
-- walking jobs_dead in its order costs the slice alone, whatever the number of the dead.
SET enable_bitmapscan = off SET enable_seqscan = off SET enable_sort = off AS $$
#variable_conflict use_column
DECLARE
  r replay_runs%ROWTYPE;
  v_jobs uuid[];
  v_team text;
  v_end timestamptz;
  v_want int;
  v_replayed int;
  v_more boolean;
BEGIN
  SELECT * INTO r FROM replay_runs q WHERE q.id = p_run FOR UPDATE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'unknown run %', p_run USING ERRCODE = 'no_data_found';
  END IF;
  IF r.finished_at IS NOT NULL THEN
    RETURN QUERY SELECT 0, r.done, false;
    RETURN;
  END IF;
  -- 500 take well below a second, so that nobody waits long for a row of the slice.
  v_want := least(greatest(p_size, 1), 500, coalesce(r.most - r.done, 500));
  WITH next AS (
    SELECT j.team, j.finished_at, j.id FROM jobs j
     WHERE j.status = 'dead' AND j.finished_at < r.before
       AND (j.team, j.finished_at, j.id) > (r.at_team, r.at_end, r.at_job)
       AND (r.team IS NULL OR j.team = r.team) AND (r.kind IS NULL OR j.kind = r.kind)
       AND (r.error_class IS NULL OR j.error_class = r.error_class)
       AND (r.since IS NULL OR j.finished_at >= r.since)
       -- Whatever the clock did meanwhile: no job twice in one run. As a value, not as NOT EXISTS, which the
       -- planner would make a join over the history of all jobs.
       AND (SELECT true FROM job_events e WHERE e.job = j.id AND e.type = 'replayed'
               AND e.data @> jsonb_build_object('run', p_run) LIMIT 1) IS NULL
     ORDER BY j.team, j.finished_at, j.id LIMIT v_want
       FOR NO KEY UPDATE SKIP LOCKED
  )
  SELECT array_agg(n.id ORDER BY n.team, n.finished_at, n.id), max(n.team) INTO v_jobs, v_team FROM next n;
  SELECT j.finished_at INTO v_end FROM jobs j WHERE j.id = v_jobs[cardinality(v_jobs)];
  v_replayed := cardinality(replay_dead(coalesce(v_jobs, '{}'), p_run, p_who, p_reason));
  v_more := r.done + v_replayed < coalesce(r.most, r.done + v_replayed + 1);
  IF coalesce(cardinality(v_jobs), 0) < v_want THEN
    -- The end of this pass. Whatever was locked is looked at again from the start.
    v_more := v_more AND EXISTS (
      SELECT FROM jobs j
       WHERE j.status = 'dead' AND j.finished_at < r.before
         AND (r.team IS NULL OR j.team = r.team) AND (r.kind IS NULL OR j.kind = r.kind)
         AND (r.error_class IS NULL OR j.error_class = r.error_class)
         AND (r.since IS NULL OR j.finished_at >= r.since)
         AND (SELECT true FROM job_events e WHERE e.job = j.id AND e.type = 'replayed'
                 AND e.data @> jsonb_build_object('run', p_run) LIMIT 1) IS NULL);
    UPDATE replay_runs q SET at_team = DEFAULT, at_end = DEFAULT, at_job = DEFAULT WHERE q.id = p_run;
  ELSE
    UPDATE replay_runs q SET at_team = v_team, at_end = v_end, at_job = v_jobs[cardinality(v_jobs)]
     WHERE q.id = p_run;
  END IF;
  UPDATE replay_runs q SET done = q.done + v_replayed,
         finished_at = CASE WHEN NOT v_more THEN clock_timestamp() END
   WHERE q.id = p_run;
  RETURN QUERY SELECT v_replayed, r.done + v_replayed, v_more;
END $$;

-- Put a quarantined intent that belongs to no job back, under its old message id and due at once; a job's comes
-- back with the job. The schema's checks hold as for any intent. Returns: replayed | already | unknown |
-- of_a_job | cut (the body may not be whole) | alive (there is such an intent) | refused <constraint>.
CREATE OR REPLACE FUNCTION replay_quarantined(p_id bigint, p_who text, p_reason text) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
  q quarantine%ROWTYPE;
  v_constraint text;
BEGIN
  SELECT * INTO q FROM quarantine WHERE id = p_id FOR UPDATE;
  IF NOT FOUND THEN
    RETURN CASE WHEN EXISTS (
      SELECT FROM operator_actions a
       WHERE a.action = 'replay_quarantined' AND a.target @> jsonb_build_object('quarantine', p_id)
    ) THEN 'already' ELSE 'unknown' END;
  ELSIF q.job IS NOT NULL THEN
    RETURN 'of_a_job';
  ELSIF length(q.body) >= 4096 THEN
    RETURN 'cut';  -- quarantine_intent keeps so much; whether there was more, nobody knows
  END IF;
  BEGIN
    INSERT INTO outbox (message_id, queue, lane, priority, body)
    VALUES (q.message_id, q.queue, q.lane, q.priority, q.body);
  EXCEPTION
    WHEN unique_violation THEN
      RETURN 'alive';
    WHEN check_violation OR foreign_key_violation OR not_null_violation THEN
      GET STACKED DIAGNOSTICS v_constraint = CONSTRAINT_NAME;
      RETURN 'refused ' || v_constraint;
  END;
  DELETE FROM quarantine WHERE id = q.id;
  INSERT INTO operator_actions (who, action, reason, target)
  VALUES (p_who, 'replay_quarantined', p_reason,
          jsonb_build_object('quarantine', q.id, 'message_id', q.message_id));
  RETURN 'replayed';
END $$;
