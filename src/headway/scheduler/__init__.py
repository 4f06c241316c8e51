"""Which tokens of which sequences run next: the queue, the policy (pure), the scheduler."""
