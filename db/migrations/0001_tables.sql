-- What is true. Every CHECK makes a row that must not exist impossible to write.

CREATE TYPE job_status AS ENUM ('queued', 'processing', 'retrying', 'succeeded', 'dead', 'cancelled');

CREATE TYPE event_type AS ENUM (
  'accepted', 'claimed', 'succeeded', 'failed', 'released', 'rescued', 'died',
  'cancel_requested', 'cancelled', 'replayed', 'quarantined'
);

CREATE TABLE teams (
  id          text PRIMARY KEY CHECK (id ~ '^[a-z0-9][a-z0-9-]{0,62}$'),
  max_backlog int NOT NULL DEFAULT 100000 CHECK (max_backlog >= 0),
  created_at  timestamptz NOT NULL DEFAULT now()
);
COMMENT ON COLUMN teams.max_backlog IS 'unfinished jobs above which new ones are answered 429';

CREATE TABLE tokens (
  id         uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  team       text NOT NULL REFERENCES teams,
  hash       bytea NOT NULL UNIQUE CHECK (octet_length(hash) = 32),
  scopes     text[] NOT NULL DEFAULT '{submit,read}'
             CHECK (scopes <@ '{submit,read,operate}'::text[] AND cardinality(scopes) > 0),
  label      text NOT NULL DEFAULT '' CHECK (length(label) <= 100),
  created_at timestamptz NOT NULL DEFAULT now(),
  expires_at timestamptz,
  revoked_at timestamptz
);
COMMENT ON COLUMN tokens.hash IS 'SHA-256 of the token; the token itself is shown once and not kept';

CREATE TABLE queues (
  name text PRIMARY KEY CHECK (name ~ '^[a-z][a-z0-9_-]{0,62}$')
);
INSERT INTO queues VALUES ('previews');

CREATE TABLE kinds (
  name         text PRIMARY KEY,
  queue        text NOT NULL REFERENCES queues,
  max_attempts int NOT NULL CHECK (max_attempts BETWEEN 1 AND 1000)
);
INSERT INTO kinds VALUES ('page', 'previews', 5), ('thumbnail', 'previews', 5);

CREATE TABLE documents (
  team       text NOT NULL REFERENCES teams,
  digest     text NOT NULL CHECK (digest ~ '^sha256:[0-9a-f]{64}$'),
  size       bigint NOT NULL CHECK (size >= 0),
  created_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (team, digest)
);

CREATE TABLE batches (
  id         uuid PRIMARY KEY,
  team       text NOT NULL REFERENCES teams,
  size       int NOT NULL CHECK (size BETWEEN 1 AND 10000),
  created_at timestamptz NOT NULL
);

CREATE TABLE jobs (
  id           uuid PRIMARY KEY,
  team         text NOT NULL,
  batch        uuid REFERENCES batches,
  kind         text NOT NULL REFERENCES kinds,
  document     text NOT NULL,
  title        text CHECK (length(title) <= 200),
  priority     smallint NOT NULL CHECK (priority BETWEEN 0 AND 9),
  simulate     jsonb,
  traceparent  text CHECK (length(traceparent) <= 64),
  status       job_status NOT NULL,
  dispatch_no  int NOT NULL CHECK (dispatch_no >= 1),
  attempt      int NOT NULL CHECK (attempt BETWEEN 0 AND max_attempts),
  max_attempts int NOT NULL CHECK (max_attempts BETWEEN 1 AND 1000),
  releases     int NOT NULL DEFAULT 0 CHECK (releases >= 0),
  worker       uuid,
  claimed_at   timestamptz,
  not_before   timestamptz,
  artifact     text CHECK (artifact ~ '^sha256:[0-9a-f]{64}$'),
  artifact_size bigint CHECK (artifact_size >= 0),
  error_class  text CHECK (length(error_class) BETWEEN 1 AND 100),
  cancel_requested_at timestamptz,
  created_at   timestamptz NOT NULL,
  updated_at   timestamptz NOT NULL,
  finished_at  timestamptz,
  version      int NOT NULL CHECK (version >= 1),
  FOREIGN KEY (team, document) REFERENCES documents (team, digest),
  CONSTRAINT processing_has_worker CHECK ((status = 'processing') = (worker IS NOT NULL)),
  CONSTRAINT processing_has_claim  CHECK ((status = 'processing') = (claimed_at IS NOT NULL)),
  CONSTRAINT processing_spends     CHECK (status <> 'processing' OR attempt >= 1),
  CONSTRAINT success_has_artifact  CHECK ((status = 'succeeded') = (artifact IS NOT NULL)),
  CONSTRAINT artifact_has_size     CHECK ((artifact IS NULL) = (artifact_size IS NULL)),
  CONSTRAINT dead_has_error        CHECK (status <> 'dead' OR error_class IS NOT NULL),
  CONSTRAINT terminal_has_end      CHECK ((status IN ('succeeded', 'dead', 'cancelled')) = (finished_at IS NOT NULL))
) WITH (fillfactor = 85);
COMMENT ON COLUMN jobs.priority IS '0 is taken first, 9 last, inside one team';
COMMENT ON COLUMN jobs.attempt IS 'renderer starts that were spent; counted before the renderer runs';
COMMENT ON COLUMN jobs.version IS 'number of events; the seq of the last one';

-- Quotas, caps and counts by team look only at what is unfinished, which stays small.
CREATE INDEX jobs_unfinished ON jobs (team, status) WHERE status IN ('queued', 'processing', 'retrying');
CREATE INDEX jobs_by_worker  ON jobs (worker) WHERE worker IS NOT NULL;
CREATE INDEX jobs_dead       ON jobs (team, finished_at, id) WHERE status = 'dead';
CREATE INDEX jobs_by_team    ON jobs (team, created_at, id);
CREATE INDEX jobs_by_batch   ON jobs (batch, status) WHERE batch IS NOT NULL;

CREATE TABLE job_events (
  job  uuid NOT NULL REFERENCES jobs,
  seq  int NOT NULL CHECK (seq >= 1),
  type event_type NOT NULL,
  at   timestamptz NOT NULL,
  who  text NOT NULL CHECK (length(who) BETWEEN 1 AND 200),
  data jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(data) = 'object'),
  PRIMARY KEY (job, seq)
);

CREATE TABLE requests (
  team        text NOT NULL REFERENCES teams,
  key         text NOT NULL CHECK (key ~ '^[\x21-\x7e]{1,255}$'),
  fingerprint bytea NOT NULL CHECK (octet_length(fingerprint) = 32),
  job         uuid REFERENCES jobs,
  batch       uuid REFERENCES batches,
  created_at  timestamptz NOT NULL,
  PRIMARY KEY (team, key),
  CONSTRAINT names_one_result CHECK ((job IS NULL) <> (batch IS NULL))
);
CREATE INDEX requests_by_job ON requests (job) WHERE job IS NOT NULL;
CREATE INDEX requests_by_batch ON requests (batch) WHERE batch IS NOT NULL;

-- An intent: "this message must be delivered". It lives until its delivery is consumed, so the
-- table holds exactly the unfinished dispatches. Body is text: jsonb numbers explode in the WAL.
CREATE TABLE outbox (
  id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  message_id text NOT NULL UNIQUE CHECK (length(message_id) BETWEEN 3 AND 200),
  queue      text NOT NULL REFERENCES queues,
  lane       text NOT NULL CHECK (lane ~ '^[a-z0-9][a-z0-9-]{0,62}$'),
  priority   smallint NOT NULL CHECK (priority BETWEEN 0 AND 9),
  not_before timestamptz CHECK (isfinite(not_before)),
  body       text NOT NULL CHECK (octet_length(body) BETWEEN 2 AND 4096),
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT message_id_names_lane CHECK (starts_with(message_id, lane || '|'))
) WITH (
  -- Rows are inserted and deleted once each, for ever: vacuum by count, not by share of the table.
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 50000,
  autovacuum_vacuum_cost_delay = 0
);

CREATE TABLE quarantine (
  id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  intent     bigint NOT NULL,
  message_id text NOT NULL,
  queue      text NOT NULL,
  lane       text NOT NULL,
  priority   smallint NOT NULL,
  body       text NOT NULL,
  job        uuid,
  reason     text NOT NULL CHECK (length(reason) BETWEEN 1 AND 500),
  who        text NOT NULL,
  at         timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Append-only settings of a lane; '*' is the global row. The relay's decoder sees inserts only, so
-- a setting is an insert, each row is complete, and the highest version wins everywhere.
CREATE TABLE control (
  version         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  lane            text NOT NULL CHECK (lane = '*' OR lane ~ '^[a-z0-9][a-z0-9-]{0,62}$'),
  max_running     int CHECK (max_running BETWEEN 1 AND 100000),
  weight          int NOT NULL DEFAULT 1 CHECK (weight BETWEEN 1 AND 100),
  rate_per_second double precision CHECK (rate_per_second > 0 AND rate_per_second <= 1e6),
  burst           int NOT NULL DEFAULT 1 CHECK (burst BETWEEN 1 AND 1000000),
  paused          boolean NOT NULL DEFAULT false,
  who             text NOT NULL,
  reason          text NOT NULL DEFAULT '',
  at              timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX control_by_lane ON control (lane, version DESC);
INSERT INTO control (lane, who, reason) VALUES ('*', 'migrate', 'the global switch');
COMMENT ON COLUMN control.max_running IS 'renders of the team at one time; null: no limit';
COMMENT ON COLUMN control.rate_per_second IS 'starts a second; null: no limit; burst: starts at once after idling';

-- A lane whose settings are not known stays closed, so a team is born with its row, whoever inserts it.
CREATE FUNCTION give_settings() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
  INSERT INTO control (lane, who, reason) VALUES (NEW.id, 'schema', 'a new team''s defaults');
  RETURN NULL;
END $$;
CREATE TRIGGER teams_have_settings AFTER INSERT ON teams FOR EACH ROW EXECUTE FUNCTION give_settings();

CREATE TABLE workers (
  id           uuid PRIMARY KEY,
  host         text NOT NULL,
  pid          int NOT NULL,
  threads      int NOT NULL,
  started_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  heartbeat_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE workers IS 'one row per process start';

CREATE TABLE operator_actions (
  id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  who    text NOT NULL CHECK (length(who) BETWEEN 1 AND 200),
  action text NOT NULL,
  reason text NOT NULL CHECK (length(reason) BETWEEN 1 AND 1000),
  target jsonb NOT NULL DEFAULT '{}'
);

-- Fences relays: drawn after START_REPLICATION succeeded, so the slot's holder has the highest.
CREATE SEQUENCE relay_epoch;

CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  -- prune_jobs() is the one road by which history leaves.
  IF current_setting('oncommit.pruning', true) = 'on' AND TG_OP = 'DELETE' THEN
    RETURN OLD;
  END IF;
  RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
END $$;
CREATE TRIGGER job_events_append_only BEFORE UPDATE OR DELETE ON job_events
  FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER job_events_no_truncate BEFORE TRUNCATE ON job_events
  FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER operator_actions_append_only BEFORE UPDATE OR DELETE ON operator_actions
  FOR EACH ROW EXECUTE FUNCTION refuse_change();
