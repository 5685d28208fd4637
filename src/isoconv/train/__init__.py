"""Training: one engine, the tasks on it, and the folders that runs live in."""
