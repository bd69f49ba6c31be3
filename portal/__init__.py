"""The HTTP door: accept, status, preview. It talks to PostgreSQL and to nothing else."""
