"""What orchestrators and people ask a server: health, readiness, version, metrics."""
