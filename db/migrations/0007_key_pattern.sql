-- The same keys as before: printable ASCII, 1 to 255. A pattern that counts is walked through a table of its
-- states, which is built anew for each row: 30 us of an acceptance. NOT VALID: new rows are checked at once, and the
-- look at the old ones, in 0009, needs a lock that stops nobody.
-- Autovacuum gives way to whoever waits for longer than deadlock_timeout (1 s), which no try of 500 ms does: so this
-- waits first for a lock that keeps no reader and no writer, and has autovacuum out of the way.
SET LOCAL lock_timeout = '5s';
LOCK TABLE requests IN SHARE UPDATE EXCLUSIVE MODE;
SET LOCAL lock_timeout = '500ms';
ALTER TABLE requests DROP CONSTRAINT requests_key_check;
ALTER TABLE requests ADD CONSTRAINT key_is_printable
  CHECK (length(key) BETWEEN 1 AND 255 AND key !~ '[^\x21-\x7e]') NOT VALID;
