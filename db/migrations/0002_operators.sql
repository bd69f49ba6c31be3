-- What the operator's long works need: a replay that can be resumed, and pruning by age.

-- One bulk replay: "what was dead before this instant, and matches". A job that fails again during the
-- sweep has a later end, so it is not part of the same run; the cursor makes each slice cost its size.
CREATE TABLE replay_runs (
  id          uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  asked       jsonb NOT NULL CHECK (jsonb_typeof(asked) = 'object'),
  team        text,
  kind        text,
  error_class text,
  since       timestamptz,
  before      timestamptz NOT NULL,
  most        int CHECK (most >= 1),
  done        int NOT NULL DEFAULT 0 CHECK (done >= 0),
  who         text NOT NULL CHECK (length(who) BETWEEN 1 AND 200),
  reason      text NOT NULL CHECK (length(reason) BETWEEN 1 AND 1000),
  begun_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
  finished_at timestamptz,
  at_team     text NOT NULL DEFAULT '',
  at_end      timestamptz NOT NULL DEFAULT '-infinity',
  at_job      uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
  CONSTRAINT limit_holds CHECK (done <= most)
);
COMMENT ON COLUMN replay_runs.asked IS 'the filters as they were typed: the same command again finds its unfinished run';
COMMENT ON COLUMN replay_runs.at_team IS 'with at_end and at_job: the place in jobs_dead up to which this pass has come';

-- Pruning walks what ended longest ago; without it every slice would read the whole table.
CREATE INDEX jobs_finished ON jobs (finished_at, id) WHERE finished_at IS NOT NULL;
