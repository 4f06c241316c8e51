"""HTTP in, HTTP out. Sees the models only through service/protocol; each API has a folder: schema, convert, routes."""
