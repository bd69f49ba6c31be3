-- The age of the oldest due intent is asked for by every probe and scrape: it must not cost a look at
-- the whole backlog. Only delayed intents are in here, so accepting a job writes nothing to it.
CREATE INDEX outbox_by_due ON outbox (not_before) WHERE not_before IS NOT NULL;
