-- READ COMMITTED: each statement of a function sees what was committed before it began. Whatever waits for
-- a lock and then counts, or reads the latest row, is right only so: with one snapshot for the whole
-- transaction the wait would be for nothing. Internal.
CREATE OR REPLACE FUNCTION need_read_committed() RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'this needs READ COMMITTED' USING ERRCODE = 'active_sql_transaction';
  END IF;
END $$;
