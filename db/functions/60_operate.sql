-- The operator's audited hands, and cancel, which the portal shares.

-- Cancel one job. Returns: cancelled | asked (a render is going; it is told to stop) | already | finished | unknown.
CREATE OR REPLACE FUNCTION cancel_job(p_team text, p_job uuid, p_who text, p_reason text) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
  j jobs%ROWTYPE;
  v_now timestamptz;
BEGIN
  SELECT * INTO j FROM jobs WHERE id = p_job AND (p_team IS NULL OR team = p_team) FOR NO KEY UPDATE;
  v_now := clock_timestamp();
  IF NOT FOUND THEN
    RETURN 'unknown';
  ELSIF j.status = 'cancelled' THEN
    RETURN 'already';
  ELSIF j.finished_at IS NOT NULL THEN
    RETURN 'finished';
  ELSIF j.status = 'processing' THEN
    IF j.cancel_requested_at IS NULL THEN
      UPDATE jobs SET cancel_requested_at = v_now, updated_at = v_now, version = version + 1 WHERE id = p_job;
      INSERT INTO job_events (job, seq, type, at, who, data)
      VALUES (p_job, j.version + 1, 'cancel_requested', v_now, p_who, jsonb_build_object('reason', p_reason));
    END IF;
    RETURN 'asked';
  END IF;
  UPDATE jobs SET status = 'cancelled', not_before = NULL, finished_at = v_now, updated_at = v_now,
         version = version + 1 WHERE id = p_job;
  INSERT INTO job_events (job, seq, type, at, who, data)
  VALUES (p_job, j.version + 1, 'cancelled', v_now, p_who, jsonb_build_object('reason', p_reason));
  DELETE FROM outbox WHERE message_id = preview_message_id(j.team, j.id, j.dispatch_no);
  RETURN 'cancelled';
END $$;

-- The same for an operator, of whatever team; what changed something is in operator_actions.
CREATE OR REPLACE FUNCTION cancel_as_operator(p_job uuid, p_who text, p_reason text) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
  v_outcome text := cancel_job(NULL, p_job, p_who, p_reason);
BEGIN
  IF v_outcome IN ('cancelled', 'asked') THEN
    INSERT INTO operator_actions (who, action, reason, target)
    VALUES (p_who, 'cancel', p_reason, jsonb_build_object('job', p_job, 'outcome', v_outcome));
  END IF;
  RETURN v_outcome;
END $$;

-- The bounds of a lane's settings, as the CHECKs of `control` have them, in words that say what is allowed.
-- Internal.
CREATE OR REPLACE FUNCTION check_settings(p_changes jsonb) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
  v record;
BEGIN
  FOR v IN
    SELECT c.key, c.value, b.least, b.most, b.whole, b.nullable, b.least IS NULL AND c.key <> 'paused' AS unknown
      FROM jsonb_each(p_changes) c
      LEFT JOIN (VALUES ('max_running', 1::numeric, 100000::numeric, true, true), ('weight', 1, 100, true, false),
                        ('rate_per_second', 0.000001, 1000000, false, true), ('burst', 1, 1000000, true, false)
                ) AS b(key, least, most, whole, nullable) ON b.key = c.key
  LOOP
    IF v.unknown THEN
      RAISE EXCEPTION 'there is no setting %', left(v.key, 40) USING ERRCODE = 'invalid_parameter_value';
    ELSIF v.key = 'paused' THEN
      CONTINUE WHEN jsonb_typeof(v.value) = 'boolean';
      RAISE EXCEPTION 'paused must be true or false' USING ERRCODE = 'invalid_parameter_value';
    -- Nothing but a number: text would let NaN and Infinity in, which jsonb's numbers cannot be.
    ELSIF jsonb_typeof(v.value) = 'number' AND v.value::numeric BETWEEN v.least AND v.most
          AND (NOT v.whole OR v.value::text ~ '^[0-9]+$') OR v.nullable AND v.value = 'null' THEN
      CONTINUE;
    END IF;
    RAISE EXCEPTION '% must be a%number, % to %', v.key, CASE WHEN v.whole THEN ' whole ' ELSE ' ' END, v.least,
      v.most || CASE WHEN v.nullable THEN ', or null for no limit' ELSE '' END
      USING ERRCODE = 'invalid_parameter_value';
  END LOOP;
END $$;

-- Write a lane's next settings row: the latest one with the given fields changed. p_changes holds any
-- of max_running, weight, rate_per_second, burst, paused; an explicit null means "no limit".
CREATE OR REPLACE FUNCTION set_lane(p_lane text, p_changes jsonb, p_who text, p_reason text) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
  c control%ROWTYPE;
  v_version bigint;
BEGIN
  IF p_lane <> '*' AND NOT EXISTS (SELECT FROM teams WHERE id = p_lane) THEN
    RAISE EXCEPTION 'unknown team %', p_lane USING ERRCODE = 'no_data_found';
  END IF;
  PERFORM check_settings(p_changes);
  PERFORM need_read_committed();
  -- Read and append are one step per lane, or a change made at the same time would be undone.
  PERFORM pg_advisory_xact_lock(hashtextextended('control|' || p_lane, 0));
  SELECT * INTO c FROM control WHERE lane = p_lane ORDER BY version DESC LIMIT 1;
  INSERT INTO control (lane, max_running, weight, rate_per_second, burst, paused, who, reason)
  VALUES (
    p_lane,
    CASE WHEN p_changes ? 'max_running' THEN (p_changes ->> 'max_running')::int ELSE c.max_running END,
    coalesce((p_changes ->> 'weight')::int, c.weight, 1),
    CASE WHEN p_changes ? 'rate_per_second' THEN (p_changes ->> 'rate_per_second')::float8 ELSE c.rate_per_second END,
    coalesce((p_changes ->> 'burst')::int, c.burst, 1),
    coalesce((p_changes ->> 'paused')::boolean, c.paused, false),
    p_who, coalesce(p_reason, ''))
  RETURNING version INTO v_version;
  INSERT INTO operator_actions (who, action, reason, target)
  VALUES (p_who, 'set_lane', coalesce(nullif(p_reason, ''), 'not given'),
          jsonb_build_object('lane', p_lane, 'changes', p_changes, 'version', v_version));
  RETURN v_version;
END $$;

-- Pause or resume a lane ('*': everything). Returns whether that changed anything: who paused first, and
-- why, stays visible when somebody pauses again.
CREATE OR REPLACE FUNCTION pause_lane(p_lane text, p_paused boolean, p_who text, p_reason text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
  PERFORM need_read_committed();
  PERFORM pg_advisory_xact_lock(hashtextextended('control|' || p_lane, 0));
  IF p_paused = (SELECT c.paused FROM control c WHERE c.lane = p_lane ORDER BY c.version DESC LIMIT 1) THEN
    RETURN false;
  END IF;
  PERFORM set_lane(p_lane, jsonb_build_object('paused', p_paused), p_who, p_reason);
  RETURN true;
END $$;

-- Set how many unfinished jobs a team may have before new ones are answered 429.
CREATE OR REPLACE FUNCTION set_backlog(p_team text, p_max int, p_who text, p_reason text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
  UPDATE teams SET max_backlog = p_max WHERE id = p_team;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'unknown team %', p_team USING ERRCODE = 'no_data_found';
  END IF;
  INSERT INTO operator_actions (who, action, reason, target)
  VALUES (p_who, 'set_backlog', coalesce(nullif(p_reason, ''), 'not given'),
          jsonb_build_object('team', p_team, 'max_backlog', p_max));
END $$;

-- Make a team; a trigger gives it its first settings row. Returns false when it exists.
CREATE OR REPLACE FUNCTION create_team(p_team text, p_who text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
  INSERT INTO teams (id) VALUES (p_team) ON CONFLICT DO NOTHING;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  INSERT INTO operator_actions (who, action, reason, target)
  VALUES (p_who, 'create_team', 'created', jsonb_build_object('team', p_team));
  RETURN true;
END $$;

-- Store the hash of a new token. Returns its id.
CREATE OR REPLACE FUNCTION create_token(p_team text, p_hash bytea, p_scopes text[], p_label text,
                                        p_expires_at timestamptz, p_who text) RETURNS uuid
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
  v_id uuid;
BEGIN
  INSERT INTO tokens (team, hash, scopes, label, expires_at)
  VALUES (p_team, p_hash, p_scopes, p_label, p_expires_at) RETURNING id INTO v_id;
  INSERT INTO operator_actions (who, action, reason, target)
  VALUES (p_who, 'create_token', 'created', jsonb_build_object('team', p_team, 'token', v_id, 'scopes', p_scopes));
  RETURN v_id;
END $$;

CREATE OR REPLACE FUNCTION revoke_token(p_token uuid, p_who text, p_reason text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
  UPDATE tokens SET revoked_at = clock_timestamp() WHERE id = p_token AND revoked_at IS NULL;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  INSERT INTO operator_actions (who, action, reason, target)
  VALUES (p_who, 'revoke_token', coalesce(nullif(p_reason, ''), 'not given'), jsonb_build_object('token', p_token));
  RETURN true;
END $$;
