"""What many jobs, retries and worker restarts leave behind."""
