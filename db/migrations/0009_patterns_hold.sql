-- A transaction of its own: it reads the tables and blocks no reader and no writer.
ALTER TABLE requests VALIDATE CONSTRAINT key_is_printable;
ALTER TABLE outbox VALIDATE CONSTRAINT lane_is_a_name;
