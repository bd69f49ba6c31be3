-- Intents: the one place where a render_preview message is written, so that no role can forge one.

-- The casts are for the planner: text || anything is STABLE, an IMMUTABLE function of it is not inlined, and a
-- call of a function that is not costs 40 us, several times in the life of a job.
CREATE OR REPLACE FUNCTION preview_message_id(team text, job uuid, dispatch_no int) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN team || '|' || job::text || '.' || dispatch_no::text;

-- The whole encoded Dramatiq message. `version` lets a worker refuse what it does not know.
CREATE OR REPLACE FUNCTION preview_message(
  message_id text, queue text, job uuid, dispatch_no int, traceparent text, at timestamptz
) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE RETURN
  '{"queue_name":' || to_json(queue)::text
  || ',"actor_name":"render_preview","args":["' || job || '",' || dispatch_no || '],"kwargs":{}'
  || ',"options":{"redis_message_id":' || to_json(message_id)::text || ',"version":1'
  || CASE WHEN traceparent IS NULL THEN '' ELSE ',"traceparent":' || to_json(traceparent)::text END
  || '},"message_id":' || to_json(message_id)::text
  || ',"message_timestamp":' || (extract(epoch FROM at) * 1000)::bigint || '}';

-- Insert the intents of the current dispatch of these jobs. Internal: called by transitions only.
CREATE OR REPLACE FUNCTION put_intents(p_jobs uuid[], p_not_before timestamptz) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
  INSERT INTO outbox (message_id, queue, lane, priority, not_before, body)
  SELECT m.id, k.queue, j.team, j.priority, p_not_before,
         preview_message(m.id, k.queue, j.id, j.dispatch_no, j.traceparent, now())
    FROM unnest(p_jobs) WITH ORDINALITY AS u(id, n)
    JOIN jobs j ON j.id = u.id
    JOIN kinds k ON k.name = j.kind
   CROSS JOIN LATERAL (SELECT preview_message_id(j.team, j.id, j.dispatch_no) AS id) m
   ORDER BY u.n
$$;

-- Take an intent out of circulation with the reason; its job becomes dead, and can be replayed.
-- Returns: quarantined | gone (no such intent) | in_use (its job is being rendered).
CREATE OR REPLACE FUNCTION quarantine_intent(p_message_id text, p_reason text, p_who text) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
  o outbox%ROWTYPE;
  j jobs%ROWTYPE;
  v_job uuid;
  v_now timestamptz;
  v_text text := substring(p_message_id FROM '\|([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.[0-9]+$');
BEGIN
  IF v_text IS NOT NULL THEN
    v_job := v_text::uuid;
    SELECT * INTO j FROM jobs WHERE id = v_job FOR NO KEY UPDATE;
  END IF;
  SELECT * INTO o FROM outbox WHERE message_id = p_message_id FOR UPDATE;
  IF NOT FOUND THEN
    RETURN 'gone';
  END IF;
  IF j.id IS NOT NULL AND preview_message_id(j.team, j.id, j.dispatch_no) = p_message_id THEN
    IF j.status = 'processing' THEN
      RETURN 'in_use';
    END IF;
    v_now := clock_timestamp();  -- not now(), which is from before the lock was had
    UPDATE jobs SET status = 'dead', error_class = 'Quarantined', finished_at = v_now, not_before = NULL,
           updated_at = v_now, version = version + 1 WHERE id = j.id;
    INSERT INTO job_events (job, seq, type, at, who, data)
    VALUES (j.id, j.version + 1, 'quarantined', v_now, p_who,
            jsonb_build_object('error_class', 'Quarantined', 'error', left(p_reason, 500)));
  END IF;
  DELETE FROM outbox WHERE id = o.id;
  INSERT INTO quarantine (intent, message_id, queue, lane, priority, body, job, reason, who)
  VALUES (o.id, o.message_id, o.queue, o.lane, o.priority, left(o.body, 4096), j.id, left(p_reason, 500), p_who);
  RETURN 'quarantined';
END $$;
