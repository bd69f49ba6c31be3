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
--   busy       not p_wait, and somebody has the job's row, or its team's, at this moment: nothing was done about it
CREATE OR REPLACE FUNCTION claim_each(p_worker uuid, p_jobs uuid[], p_dispatch_nos int[], p_wait boolean)
RETURNS TABLE (job uuid, dispatch_no int, outcome text, team text, kind text, document text, title text,
               attempt int, max_attempts int, releases int, simulate jsonb, created_at timestamptz)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp
-- One plan a session, and one that stays right while the tables grow: see finish_each (41_finish_each.sql).
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
  v_capped text[];
  v_mine uuid[];
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN  -- a call costs more than to ask
    PERFORM need_read_committed();
  END IF;
  -- A cap is exact only if claims of the team come one after the other: lock its row, then count
  -- with a fresh snapshot. Teams first, then jobs, each in order: no deadlock between two claims.
  IF p_wait THEN
    WITH locked AS (
      SELECT t.id FROM teams t
       WHERE t.id IN (SELECT q.team FROM jobs q WHERE q.id = ANY (p_jobs))
         AND (SELECT l.max_running FROM control l WHERE l.lane = t.id ORDER BY l.version DESC LIMIT 1) IS NOT NULL
       ORDER BY t.id FOR NO KEY UPDATE)
    SELECT coalesce(array_agg(k.id), '{}') INTO v_capped FROM locked k;
    SELECT coalesce(array_agg(k.id), '{}') INTO v_mine
      FROM (SELECT q.id FROM jobs q WHERE q.id = ANY (p_jobs) ORDER BY q.id FOR NO KEY UPDATE) k;
  ELSE
    WITH locked AS (
      SELECT t.id FROM teams t
       WHERE t.id IN (SELECT q.team FROM jobs q WHERE q.id = ANY (p_jobs))
         AND (SELECT l.max_running FROM control l WHERE l.lane = t.id ORDER BY l.version DESC LIMIT 1) IS NOT NULL
       FOR NO KEY UPDATE SKIP LOCKED)
    SELECT coalesce(array_agg(k.id), '{}') INTO v_capped FROM locked k;
    SELECT coalesce(array_agg(k.id), '{}') INTO v_mine
      FROM (SELECT q.id FROM jobs q WHERE q.id = ANY (p_jobs) FOR NO KEY UPDATE SKIP LOCKED) k;
  END IF;
  -- A statement of its own: it sees what the rows' previous holders committed, and a pause that came meanwhile.
  -- A row that it sees and that was not there to be locked is not touched: it may be anybody's.
  RETURN QUERY
  WITH seen AS MATERIALIZED (
    SELECT u.n, u.id AS wanted, u.no, q.*, c.max_running,
           CASE WHEN q.id IS NULL THEN 'not_yet'
                WHEN q.id <> ALL (v_mine) THEN CASE WHEN p_wait THEN 'not_yet' ELSE 'busy' END
                WHEN q.dispatch_no < u.no THEN 'not_yet'
                WHEN q.dispatch_no > u.no THEN 'stale'
                WHEN q.finished_at IS NOT NULL THEN 'finished'
                WHEN q.status = 'processing' THEN CASE WHEN q.worker = p_worker THEN 'taken' ELSE 'anothers' END
                WHEN c.paused OR (SELECT g.paused FROM control g WHERE g.lane = '*' ORDER BY g.version DESC LIMIT 1)
                THEN 'paused'
                -- The cap came this very moment, or another claim counts now: the next look has the team's lock.
                WHEN c.max_running IS NOT NULL AND q.team <> ALL (v_capped)
                THEN CASE WHEN p_wait THEN 'full' ELSE 'busy' END
                ELSE 'free' END AS state
      FROM unnest(p_jobs, p_dispatch_nos) WITH ORDINALITY AS u(id, no, n)
      LEFT JOIN jobs q ON q.id = u.id AND q.id = ANY (p_jobs)
      LEFT JOIN LATERAL (SELECT l.max_running, l.paused
                           FROM control l WHERE l.lane = q.team ORDER BY l.version DESC LIMIT 1) c ON true
  ), decided AS MATERIALIZED (
    SELECT s.*, CASE WHEN s.state = 'free' AND s.max_running IS NOT NULL
                       AND s.max_running < (SELECT count(*) FROM jobs q WHERE q.team = s.team AND q.status = 'processing')
                                           + row_number() OVER (PARTITION BY s.state, s.team ORDER BY s.n)
                     THEN 'full' ELSE s.state END AS outcome
      FROM seen s
  ), claimed AS (
    UPDATE jobs q SET status = 'processing', attempt = q.attempt + 1, worker = p_worker,
           claimed_at = clock_timestamp(), not_before = NULL, updated_at = clock_timestamp(),
           version = q.version + 1
      FROM decided d WHERE d.outcome = 'free' AND q.id = d.wanted AND q.id = ANY (p_jobs)
    RETURNING q.id, q.version, q.claimed_at, q.dispatch_no, q.attempt
  ), told AS (
    INSERT INTO job_events (job, seq, type, at, who, data)
    SELECT k.id, k.version, 'claimed', k.claimed_at, 'worker:' || p_worker,
           jsonb_build_object('dispatch_no', k.dispatch_no, 'attempt', k.attempt, 'worker', p_worker)
      FROM claimed k
  )
  SELECT d.wanted, d.no, CASE d.outcome WHEN 'free' THEN 'taken' ELSE d.outcome END, d.team, d.kind, d.document,
         d.title, coalesce(k.attempt, d.attempt), d.max_attempts, d.releases, d.simulate, d.created_at
    FROM decided d LEFT JOIN claimed k ON k.id = d.wanted
   ORDER BY d.n;
END $$;

-- As workers of the release before call it. Under a name of its own, since that release's `migrate`, should one go
-- back to it, makes this one again, and two functions of one name are told apart by nobody who grants.
CREATE OR REPLACE FUNCTION claim_jobs(p_worker uuid, p_jobs uuid[], p_dispatch_nos int[])
RETURNS TABLE (job uuid, dispatch_no int, outcome text, team text, kind text, document text, title text,
               attempt int, max_attempts int, releases int, simulate jsonb, created_at timestamptz)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
  SELECT * FROM claim_each(p_worker, p_jobs, p_dispatch_nos, true)
$$;
