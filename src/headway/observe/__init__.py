"""Looking and measuring: clock, machine, metrics, logs. A leaf: anyone may call it, it calls nobody."""
