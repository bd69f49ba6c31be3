-- Probes: synthetic intents that `oncommit dispatch probe` sends through the whole path.

-- One row for each, from its commit until the probe that sent it has read it.
CREATE TABLE probes (
  message_id  text PRIMARY KEY,
  run         uuid NOT NULL,
  sent_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  claimed_at  timestamptz,
  finished_at timestamptz,
  worker      uuid,
  CONSTRAINT claim_has_worker CHECK ((claimed_at IS NULL) = (worker IS NULL)),
  CONSTRAINT claim_comes_first CHECK (finished_at IS NULL OR claimed_at IS NOT NULL)
);
CREATE INDEX probes_by_run ON probes (run);

-- Probes have a lane of their own, so that no team's limits are touched and no backlog is before them.
-- Only for names to come: a table that is checked as a whole would be locked for as long.
ALTER TABLE teams ADD CONSTRAINT lane_of_probes_is_no_team CHECK (id <> 'oncommit-probe') NOT VALID;
INSERT INTO control (lane, who, reason)
SELECT 'oncommit-probe', 'schema', 'the lane of dispatch probes'
 WHERE NOT EXISTS (SELECT FROM control WHERE lane = 'oncommit-probe');
