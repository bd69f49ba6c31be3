-- The same lanes as before, without a pattern that counts: see 0007. A table at a time, so that no lock is held
-- while another one is waited for.
SET LOCAL lock_timeout = '5s';
LOCK TABLE outbox IN SHARE UPDATE EXCLUSIVE MODE;
SET LOCAL lock_timeout = '500ms';
ALTER TABLE outbox DROP CONSTRAINT outbox_lane_check;
ALTER TABLE outbox ADD CONSTRAINT lane_is_a_name
  CHECK (length(lane) <= 63 AND lane ~ '^[a-z0-9][a-z0-9-]*$') NOT VALID;
