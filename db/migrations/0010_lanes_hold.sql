-- As 0009.
SET LOCAL lock_timeout = '5s';
ALTER TABLE outbox VALIDATE CONSTRAINT lane_is_a_name;
