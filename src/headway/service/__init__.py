"""Many models, one door: who is resident, who may use it (leases), and when a worker is restarted."""
