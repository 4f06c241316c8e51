"""The command line: resolves the configs once and wires the rooms; nothing else decides here."""
