"""A model in a process of its own: its start, watch and end, its loop, and the parent's side of the socket."""
