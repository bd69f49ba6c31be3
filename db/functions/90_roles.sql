-- Roles and grants. Roles belong to the whole cluster and are made without a password: `ALTER ROLE
-- ... PASSWORD` (or `oncommit up`, for its own cluster) decides who may log in.

DO $$
DECLARE
  r text;
BEGIN
  FOREACH r IN ARRAY ARRAY['oncommit_portal', 'oncommit_relay', 'oncommit_worker', 'oncommit_operator', 'oncommit_viewer'] LOOP
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = r) THEN
      BEGIN
        EXECUTE format('CREATE ROLE %I LOGIN', r);
      EXCEPTION WHEN duplicate_object OR unique_violation THEN
        NULL;  -- another database of this cluster was faster
      END;
    END IF;
    EXECUTE format('GRANT CONNECT ON DATABASE %I TO %I', current_database(), r);
    EXECUTE format('GRANT USAGE ON SCHEMA public TO %I', r);
  END LOOP;
  BEGIN
    IF NOT (SELECT rolreplication FROM pg_roles WHERE rolname = 'oncommit_relay') THEN
      ALTER ROLE oncommit_relay REPLICATION;
    END IF;
  EXCEPTION WHEN insufficient_privilege THEN
    RAISE WARNING 'oncommit_relay lacks REPLICATION: as a superuser run ALTER ROLE oncommit_relay REPLICATION (or your provider''s grant), or set ONCOMMIT_REPLICATION_URL';
  END;
END $$;

-- What an earlier version granted is taken away, of what lies beside our tables and belongs to their owner.
-- An extension's or another application's things in this schema are not ours: their owner is another, and to
-- revoke anything of them would be refused.
DO $$
DECLARE
  what text;
  ours constant text := 'oncommit_portal, oncommit_relay, oncommit_worker, oncommit_operator, oncommit_viewer';
BEGIN
  FOR what IN
    SELECT CASE c.relkind WHEN 'S' THEN 'SEQUENCE ' ELSE 'TABLE ' END || c.oid::regclass
      FROM pg_class c
     WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
       AND c.relowner = (SELECT relowner FROM pg_class WHERE oid = 'jobs'::regclass)
       AND NOT EXISTS (SELECT FROM pg_depend d
                        WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e')
    UNION ALL
    SELECT 'ROUTINE ' || p.oid::regprocedure
      FROM pg_proc p
     WHERE p.pronamespace = 'public'::regnamespace
       AND p.proowner = (SELECT relowner FROM pg_class WHERE oid = 'jobs'::regclass)
       AND NOT EXISTS (SELECT FROM pg_depend d
                        WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e')
  LOOP
    EXECUTE format('REVOKE ALL ON %s FROM %s', what, ours);
  END LOOP;
END $$;

-- The time-outs and forms that db/pool.py sends with each connection. Behind a pooler, which leaves options
-- out, those of the role count. What somebody has set already stays as it is.
DO $$
DECLARE
  r text;
  name text;
  value text;
BEGIN
  FOR r, name, value IN
    SELECT role.role, s.name, s.value
      FROM unnest(ARRAY['oncommit_portal', 'oncommit_worker']) AS role(role)
     CROSS JOIN (VALUES ('statement_timeout', '15s'), ('lock_timeout', '5s'),
                        ('idle_in_transaction_session_timeout', '30s'), ('datestyle', 'ISO, MDY'),
                        ('search_path', 'public'), ('standard_conforming_strings', 'on')) AS s(name, value)
     WHERE NOT EXISTS (
       SELECT FROM pg_db_role_setting d, unnest(d.setconfig) AS given
        WHERE d.setrole = (SELECT oid FROM pg_roles WHERE rolname = role.role)
          AND d.setdatabase = 0 AND lower(given) LIKE s.name || '=%')
  LOOP
    EXECUTE format('ALTER ROLE %I SET %I = %L', r, name, value);
  END LOOP;
EXCEPTION WHEN insufficient_privilege THEN
  RAISE WARNING 'oncommit_portal and oncommit_worker have no time-outs of their own (ALTER ROLE ... SET statement_timeout, lock_timeout, datestyle, search_path): behind a pooler nothing ends a statement that hangs, and the database''s own settings count';
END $$;

-- Functions are executable by everybody until that is taken away; only ours are touched.
DO $$
DECLARE
  f regprocedure;
BEGIN
  FOR f IN
    SELECT p.oid::regprocedure FROM pg_proc p
     WHERE p.pronamespace = 'public'::regnamespace
       AND p.proname IN ('accept_jobs', 'accept_each', 'over_quota', 'claim_each', 'claim_jobs', 'finish_jobs', 'finish_each', 'end_claim', 'rescue_jobs',
                         'cancel_job', 'replay_jobs', 'replay_quarantined', 'set_lane', 'create_team', 'create_token', 'revoke_token',
                         'cancel_as_operator', 'replay_dead', 'begin_replay', 'replay_slice', 'pause_lane',
                         'set_backlog', 'prunable', 'prune_jobs', 'prune_rest', 'artifacts_page',
                         'quarantine_intent', 'put_intents', 'preview_message', 'refuse_change',
                         'give_settings', 'send_probes', 'end_probe', 'claim_probe', 'finish_probe',
                         'check_settings', 'need_read_committed')
  LOOP
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', f);
  END LOOP;
END $$;
-- Shapes only: pure text, and needed by those who look an intent up.
GRANT EXECUTE ON FUNCTION preview_message_id(text, uuid, int) TO PUBLIC;

-- portal: reads its teams' things, adds documents, accepts through the function.
GRANT SELECT ON teams, tokens, documents, batches, jobs, job_events, requests, kinds, oldest_due TO oncommit_portal;
GRANT INSERT ON documents TO oncommit_portal;
GRANT EXECUTE ON FUNCTION accept_jobs, accept_each, over_quota, cancel_job TO oncommit_portal;

-- relay: reads what it publishes, moves poison away, draws epochs. It cannot read jobs.
GRANT SELECT ON outbox, control, queues TO oncommit_relay;
GRANT USAGE, SELECT, UPDATE ON SEQUENCE relay_epoch TO oncommit_relay;
GRANT EXECUTE ON FUNCTION quarantine_intent TO oncommit_relay;

-- worker: every change of a job goes through a fenced transition.
GRANT SELECT ON jobs, workers, kinds, queues, outbox TO oncommit_worker;
GRANT INSERT, UPDATE, DELETE ON workers TO oncommit_worker;
GRANT DELETE ON outbox TO oncommit_worker;
GRANT EXECUTE ON FUNCTION claim_each, claim_jobs, finish_jobs, finish_each, end_claim, rescue_jobs, quarantine_intent,
  claim_probe, finish_probe TO oncommit_worker;

-- operator: views and audited functions, no table.
GRANT SELECT ON operator_jobs, operator_events, operator_quarantine, operator_teams, operator_lanes,
  operator_dispatch, operator_remaining, operator_slots, operator_tokens, operator_workers, operator_queues,
  operator_replays, operator_audit, operator_migrations, operator_probes, dispatch_counts, oldest_due TO oncommit_operator;
GRANT EXECUTE ON FUNCTION replay_jobs, begin_replay, replay_slice, replay_quarantined, cancel_as_operator, set_lane, pause_lane,
  set_backlog, create_team, create_token, revoke_token, prunable, prune_jobs, artifacts_page, send_probes,
  end_probe TO oncommit_operator;

-- viewer: counts.
GRANT SELECT ON dispatch_counts, oldest_due TO oncommit_viewer;
