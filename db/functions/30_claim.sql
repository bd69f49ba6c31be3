-- Claim: the conditional update by which exactly one worker takes a dispatch. The attempt is counted
-- here, before the renderer runs, so a document that kills its worker is bounded too.
--
-- Outcomes, one row per (job, dispatch_no) asked for:
--   taken      render it (also when it is already this worker's: the first reply was lost)
--   not_yet    no such row, or the dispatch is ahead of it: the WAL shows a commit before snapshots do
--   stale      a later dispatch exists
--   finished   the job is succeeded, dead or cancelled
--   anothers   another worker has this dispatch
--   paused     the team or everything is paused
--   full       the team has max_running renders going
CREATE OR REPLACE FUNCTION claim_jobs(p_worker uuid, p_jobs uuid[], p_dispatch_nos int[])
RETURNS TABLE (job uuid, dispatch_no int, outcome text, team text, kind text, document text, title text,
               attempt int, max_attempts int, releases int, simulate jsonb, created_at timestamptz)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
#variable_conflict use_column
DECLARE
  want record;
  j jobs%ROWTYPE;
  c record;
  v_outcome text;
  v_capped text[];
BEGIN
  PERFORM need_read_committed();
  -- A cap is exact only if claims of the team come one after the other: lock its row, then count
  -- with a fresh snapshot. Teams first, then jobs, each in order: no deadlock between two claims.
  WITH locked AS (
    SELECT t.id FROM teams t
     WHERE t.id IN (SELECT q.team FROM jobs q WHERE q.id = ANY (p_jobs))
       AND (SELECT l.max_running FROM control l WHERE l.lane = t.id ORDER BY l.version DESC LIMIT 1) IS NOT NULL
     ORDER BY t.id FOR NO KEY UPDATE)
  SELECT coalesce(array_agg(k.id), '{}') INTO v_capped FROM locked k;
  FOR want IN SELECT u.id, u.no FROM unnest(p_jobs, p_dispatch_nos) AS u(id, no) ORDER BY u.id, u.no LOOP
    SELECT * INTO j FROM jobs q WHERE q.id = want.id FOR NO KEY UPDATE;
    IF j.id IS NULL OR j.dispatch_no < want.no THEN
      v_outcome := 'not_yet';
    ELSIF j.dispatch_no > want.no THEN
      v_outcome := 'stale';
    ELSIF j.finished_at IS NOT NULL THEN
      v_outcome := 'finished';
    ELSIF j.status = 'processing' THEN
      v_outcome := CASE WHEN j.worker = p_worker THEN 'taken' ELSE 'anothers' END;
    ELSE
      SELECT l.max_running, l.paused INTO c
        FROM control l WHERE l.lane = j.team ORDER BY l.version DESC LIMIT 1;
      -- Read after the locks were had: a pause that came meanwhile holds.
      IF c.paused OR (SELECT g.paused FROM control g WHERE g.lane = '*' ORDER BY g.version DESC LIMIT 1) THEN
        v_outcome := 'paused';
      ELSIF c.max_running IS NOT NULL AND j.team <> ALL (v_capped) THEN
        v_outcome := 'full';  -- the cap came this very moment: the next look counts under the team's lock
      ELSIF c.max_running <= (SELECT count(*) FROM jobs q WHERE q.team = j.team AND q.status = 'processing') THEN
        v_outcome := 'full';
      ELSE
        v_outcome := 'taken';
        UPDATE jobs q SET status = 'processing', attempt = q.attempt + 1, worker = p_worker,
               claimed_at = clock_timestamp(), not_before = NULL, updated_at = clock_timestamp(),
               version = q.version + 1
         WHERE q.id = j.id RETURNING q.* INTO j;
        INSERT INTO job_events (job, seq, type, at, who, data)
        VALUES (j.id, j.version, 'claimed', j.claimed_at, 'worker:' || p_worker,
                jsonb_build_object('dispatch_no', j.dispatch_no, 'attempt', j.attempt, 'worker', p_worker));
      END IF;
    END IF;
    RETURN QUERY SELECT want.id, want.no, v_outcome, j.team, j.kind, j.document, j.title,
                        j.attempt, j.max_attempts, j.releases, j.simulate, j.created_at;
  END LOOP;
END $$;
