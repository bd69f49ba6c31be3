-- A rate below one start in a million seconds has no interval that Redis' numbers can hold. NOT VALID: new
-- rows are checked at once, and the look at the old ones, in 0006, needs a lock that stops nobody.
ALTER TABLE control DROP CONSTRAINT control_rate_per_second_check;
ALTER TABLE control ADD CONSTRAINT rate_has_an_interval
  CHECK (rate_per_second >= 1e-6 AND rate_per_second <= 1e6) NOT VALID;

-- A rate in force that is below goes up to it, as a row of its own: the relay's decoder sees inserts only.
INSERT INTO control (lane, max_running, weight, rate_per_second, burst, paused, who, reason)
SELECT c.lane, c.max_running, c.weight, 1e-6, c.burst, c.paused, 'migrate', 'the lowest rate is 0.000001 a second'
  FROM control c
 WHERE c.rate_per_second < 1e-6
   AND NOT EXISTS (SELECT FROM control n WHERE n.lane = c.lane AND n.version > c.version);
-- The rows before it stay: they say who paused, and why.
UPDATE control SET rate_per_second = 1e-6 WHERE rate_per_second < 1e-6;

-- The audit trail is for good: pruning, which takes a job's history, does not reach it.
CREATE OR REPLACE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
  -- prune_jobs() is the one road by which history leaves.
  IF TG_TABLE_NAME = 'job_events' AND TG_OP = 'DELETE' AND current_setting('oncommit.pruning', true) = 'on' THEN
    RETURN OLD;
  END IF;
  RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
END $$;
CREATE TRIGGER operator_actions_no_truncate BEFORE TRUNCATE ON operator_actions
  FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
