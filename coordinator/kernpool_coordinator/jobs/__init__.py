"""Jobs and their attempts: the lifecycle, the retries, the line they wait in."""
