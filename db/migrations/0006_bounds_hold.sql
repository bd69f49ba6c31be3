-- A transaction of its own: it reads the table and blocks no reader and no writer.
ALTER TABLE control VALIDATE CONSTRAINT rate_has_an_interval;
