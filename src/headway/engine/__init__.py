"""One loaded LLM: Submits in, Steps out. engine.py has the life of a request; loading.py makes one."""
