-- Probes: intents that carry nothing, and the times at which they passed each stage.

-- Commit so many probes and their intents. Returns the run and its message ids. What a probe that was
-- killed has left is swept away here.
CREATE OR REPLACE FUNCTION send_probes(p_count int, p_queue text, p_who text, p_reason text)
RETURNS TABLE (run uuid, message_ids text[])
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
#variable_conflict use_column
DECLARE
  v_run uuid := gen_random_uuid();
  v_now timestamptz := clock_timestamp();
  v_ids text[];
BEGIN
  IF p_count IS NULL OR p_count NOT BETWEEN 1 AND 1000 THEN
    RAISE EXCEPTION 'a probe sends 1 to 1000 intents' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  PERFORM end_probe(p.run) FROM (SELECT DISTINCT o.run FROM probes o WHERE o.sent_at < v_now - interval '1 hour') p;
  IF (SELECT count(*) FROM (SELECT FROM probes LIMIT 10000) living) >= 10000 THEN
    RAISE EXCEPTION 'ten thousand probes are under way: wait for those' USING ERRCODE = 'configuration_limit_exceeded';
  END IF;
  SELECT array_agg('oncommit-probe|probe-' || v_run || '-' || n ORDER BY n) INTO v_ids FROM generate_series(1, p_count) n;
  INSERT INTO probes (message_id, run, sent_at) SELECT id, v_run, v_now FROM unnest(v_ids) AS u(id);
  INSERT INTO outbox (message_id, queue, lane, priority, body)
  SELECT u.id, p_queue, 'oncommit-probe', 0,
         '{"queue_name":' || to_json(p_queue)::text || ',"actor_name":"probe","args":[],"kwargs":{}'
         || ',"options":{"redis_message_id":' || to_json(u.id)::text || ',"version":1}'
         || ',"message_id":' || to_json(u.id)::text
         || ',"message_timestamp":' || (extract(epoch FROM v_now) * 1000)::bigint || '}'
    FROM unnest(v_ids) WITH ORDINALITY AS u(id, n) ORDER BY u.n;
  INSERT INTO operator_actions (who, action, reason, target)
  VALUES (p_who, 'probe', p_reason, jsonb_build_object('run', v_run, 'count', p_count, 'queue', p_queue));
  run := v_run;
  message_ids := v_ids;
  RETURN NEXT;
END $$;

-- Take everything away that is left of a run. Returns how many intents of other runs are alive.
CREATE OR REPLACE FUNCTION end_probe(p_run uuid) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
  DELETE FROM outbox o USING probes p WHERE p.run = p_run AND o.message_id = p.message_id;
  DELETE FROM quarantine q USING probes p WHERE p.run = p_run AND q.message_id = p.message_id;
  DELETE FROM probes p WHERE p.run = p_run;
  RETURN (SELECT count(*) FROM probes p JOIN outbox o ON o.message_id = p.message_id);
END $$;

-- A worker has the message in its hands. Returns: taken | not_yet (the WAL shows a commit before snapshots
-- do) | gone (its run is over).
CREATE OR REPLACE FUNCTION claim_probe(p_message_id text, p_sent_ms bigint, p_worker uuid) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
  UPDATE probes SET claimed_at = coalesce(claimed_at, clock_timestamp()), worker = p_worker
   WHERE message_id = p_message_id;
  IF FOUND THEN
    RETURN 'taken';
  END IF;
  RETURN CASE WHEN clock_timestamp() < to_timestamp(p_sent_ms / 1000.0) + interval '10 s' THEN 'not_yet' ELSE 'gone' END;
END $$;

-- The probe is consumed: its end is written and its intent deleted, as for a job.
CREATE OR REPLACE FUNCTION finish_probe(p_message_id text) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
  UPDATE probes SET finished_at = coalesce(finished_at, clock_timestamp()) WHERE message_id = p_message_id;
  DELETE FROM outbox WHERE message_id = p_message_id AND lane = 'oncommit-probe';
$$;

-- Where each probe is. `quarantined`: why it was put aside, and by whom.
DROP VIEW IF EXISTS operator_probes;
CREATE VIEW operator_probes AS
  SELECT p.run, p.message_id, p.sent_at, p.claimed_at, p.finished_at, p.worker,
         q.reason AS quarantined, q.who AS quarantined_by
    FROM probes p
    LEFT JOIN LATERAL (
      SELECT k.reason, k.who FROM quarantine k WHERE k.message_id = p.message_id LIMIT 1) q ON true;
