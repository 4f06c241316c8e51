"""Bytes for people."""


def size_text(num_bytes: int) -> str:
    """Bytes for people: 512 B, 1.5 MiB, 3.2 GiB."""
    size, units = float(num_bytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while abs(size) >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:.0f} {units[0]}" if units[0] == "B" else f"{size:.1f} {units[0]}"
