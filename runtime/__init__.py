"""Settings, logs, metrics, health, failpoints, blobs: what every process needs, and no domain."""
