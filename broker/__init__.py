"""The Dramatiq broker: fair lanes in Redis, by one Lua source."""
