"""Models that another server computes: objects in this process that speak its protocol (ResidentClient)."""
