"""Measurements of compare.py as they are made, kept in a file of JSON lines: what broke off goes on where it was.

A line is a Measurement, its model, and the circumstances that it was taken in: measurements of another machine, of
another number of threads, or of code that has changed since are left where they are and not counted.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from engines import ENGINES, HERE, script_of
from machine import machine_name
from workloads import Measurement

Wanted = tuple[str, str, str, int]
"""Model, engine, workload and round of one measurement."""


@dataclass(frozen=True)
class Circumstances:
    """What has to be the same for two measurements of one engine to be of the same thing."""

    machine: str
    threads: int
    code: str
    """code_of() the engine."""


def code_of(engine: str, source: Path = HERE.parent / "src") -> str:
    """A digest of the engine's script and, for ours, of all that the package is made of."""
    files = [script_of(engine), HERE / "workloads.py"]
    if ENGINES[engine].venv is None:
        files += sorted(path for pattern in ("*.py", "*.so") for path in source.rglob(pattern))
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


class Results:
    """What was measured, by what was wanted; each new measurement is in the file before the next one begins."""

    def __init__(self, path: Path | None, engines: Sequence[str], threads: int) -> None:
        """Reads what `path` has; None: kept in memory alone. Raises ValueError, naming the line, for what is none."""
        self._path = path
        self._circumstances = {name: Circumstances(machine_name(), threads, code_of(name)) for name in engines}
        self._made: dict[Wanted, Measurement] = {}
        self.num_foreign = 0
        """Lines of these engines that were measured in other circumstances."""
        if path and path.exists():
            for place, line in enumerate(_whole_lines(path), 1):
                try:
                    self._read(json.loads(line))
                except (ValueError, TypeError, KeyError) as error:
                    raise ValueError(
                        f"{path}, line {place} is no measurement ({error!r}): mend or remove it"
                    ) from error

    def _read(self, fields: dict) -> None:
        model, circumstances = fields.pop("model"), Circumstances(**fields.pop("circumstances"))
        measurement = Measurement(**fields)
        if measurement.engine in self._circumstances:
            if circumstances == self._circumstances[measurement.engine]:
                self._made[_key(model, measurement)] = measurement
            else:
                self.num_foreign += 1

    def add(self, model: str, measurement: Measurement) -> None:
        """Appends it to the file."""
        self._made[_key(model, measurement)] = measurement
        if self._path:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            circumstances = asdict(self._circumstances[measurement.engine])
            line = json.dumps({"model": model} | asdict(measurement) | {"circumstances": circumstances})
            with self._path.open("a") as file:
                file.write(line + "\n")

    def has(self, wanted: Wanted) -> bool:
        """Whether it was measured."""
        return wanted in self._made

    def of(self, model: str, num_rounds: int) -> list[Measurement]:
        """All of a model, of the first rounds."""
        return [made for (of, *_, round_), made in self._made.items() if of == model and round_ < num_rounds]

    def begin_anew(self) -> None:
        """Forgets all; the file is kept beside, as FILE.old."""
        self._made.clear()
        if self._path and self._path.exists():
            self._path.replace(self._path.with_name(self._path.name + ".old"))


def _key(model: str, measurement: Measurement) -> Wanted:
    return model, measurement.engine, measurement.workload, measurement.round


def _whole_lines(path: Path) -> Iterator[str]:
    """All lines; of a last one without an end, whose writing broke off, the file is freed."""
    text = path.read_text()
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole)
    yield from whole.splitlines()
