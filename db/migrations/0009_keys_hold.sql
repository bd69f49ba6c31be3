-- A transaction of its own: it reads the table and blocks no reader and no writer. Autovacuum gives way after 1 s.
SET LOCAL lock_timeout = '5s';
ALTER TABLE requests VALIDATE CONSTRAINT key_is_printable;
