"""The catalog in a database: SQLite by default, or PostgreSQL. Synchronous: call it from a thread."""
