"""Committed -> published: the WAL's outbox inserts become messages in Redis."""
