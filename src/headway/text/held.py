"""What of a growing text has to wait, because a marker may begin there."""


def num_held(text: str, marker: str, start: int = 0) -> int:
    """How many characters at a text's end, all behind `start`, are the beginning of a marker whose rest may follow."""
    place = text.find(marker[0], max(start, len(text) - len(marker) + 1))
    while place >= 0:
        if marker.startswith(text[place:]):
            return len(text) - place
        place = text.find(marker[0], place + 1)
    return 0
