"""Downloads one wheel of a package, alone: by this interpreter's pip, else from pip's index by HTTP.

pip is the one that is installed or, in an environment without, the one that Python brings along to install it with.

Nothing is installed and nothing of the wheel is run. Sources: PEP 503 and PEP 691 (the simple index).
"""

import configparser
import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from headway.checkpoint.progress import Progress
from headway.errors import DownloadFailed

INDEX_VARIABLE = "HEADWAY_INDEX_URL"
_SYSTEM_FILES = (Path("/etc/pip.conf"),)
_TIMEOUT_S = 60.0
_POLL_S = 0.2
_CHUNK_BYTES = 1 << 20
_MAX_PAGE_BYTES = 64 * 1024 * 1024
_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"


@dataclass(frozen=True, slots=True)
class Package:
    """One release of a package that is a pure wheel."""

    name: str
    version: str
    tag: str = "py3-none-any"
    """Of the wheel: older ones are py2.py3-none-any."""

    @property
    def wheel_name(self) -> str:
        """The wheel's file name (PEP 427)."""
        return f"{re.sub(r'[-_.]+', '_', self.name)}-{self.version}-{self.tag}.whl"


def download_wheel(package: Package, folder: Path, progress: Progress, *, total_bytes: int | None = None) -> Path:
    """The wheel, in `folder`, which must be there and is for this download alone.

    `total_bytes` is the wheel's size, for the progress only. Raises DownloadFailed, saying what to do; OSError where
    the disk fails.
    """
    if (pip := find_pip()) is not None:
        return _download_by_pip(pip, package, folder, progress, total_bytes)
    return download_from_index(package, folder, progress, index_urls(), total_bytes=total_bytes)


def find_pip() -> list[str] | None:
    """How pip is run; None where there is none."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    places = [Path(folder) for folder in (sysconfig.get_config_var("WHEEL_PKG_DIR"),) if folder]
    ensurepip = importlib.util.find_spec("ensurepip")
    if ensurepip is not None and ensurepip.origin is not None:
        places.append(Path(ensurepip.origin).parent / "_bundled")
    wheels = [wheel for place in places for wheel in sorted(place.glob("pip-*.whl"))]
    return [sys.executable, str(wheels[-1] / "pip")] if wheels else None


def _download_by_pip(
    pip: list[str], package: Package, folder: Path, progress: Progress, total_bytes: int | None
) -> Path:
    """pip knows its own configuration: indexes, proxies, certificates, credentials."""
    folder = folder.absolute()  # pip runs in another folder
    work, log = folder / "pip", folder / "pip.log"
    work.mkdir()
    command = [*pip, "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir"]
    command += ["--no-input", "--disable-pip-version-check", "--progress-bar", "off", "--dest", str(folder)]
    command.append(f"{package.name}=={package.version}")
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**os.environ, "TMPDIR": str(work)},
        )
        try:
            while _is_running(process):
                progress(f"downloading {package.name}", _largest_file(folder), total_bytes)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    wheel = folder / package.wheel_name
    if process.returncode or not wheel.is_file():
        said = log.read_text(errors="replace").strip()
        raise DownloadFailed(
            f"pip ended with {process.returncode} and without {package.name} {package.version}: {said[-600:]}"
            "\ncheck the network and pip's index (pip config list), or set PIP_INDEX_URL"
        )
    return wheel


def _is_running(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(_POLL_S)
    except subprocess.TimeoutExpired:
        return True
    return False


def _largest_file(folder: Path) -> int:
    """Bytes of the largest file under the folder while another process writes and renames there."""
    largest = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                largest = max(largest, os.stat(os.path.join(parent, name)).st_size)
            except OSError:
                continue
    return largest


def index_urls() -> list[str]:
    """The simple indexes to ask, in order: HEADWAY_INDEX_URL, else pip's environment variables and configuration."""
    own = os.environ.get(INDEX_VARIABLE)
    if own:
        return own.split()
    settings = _pip_settings()
    urls = [url for key in ("index-url", "extra-index-url") for url in settings.get(key, "").split()]
    found = [url for url in urls if urlsplit(url).scheme in ("http", "https")]
    if not found:
        raise DownloadFailed(
            "this Python has no pip, and no package index is configured: "
            f"set {INDEX_VARIABLE} to the address of a simple index, or install pip"
        )
    return found


def _pip_settings() -> dict[str, str]:
    """pip's global options: site, user and environment's file, each over the one before, then PIP_* variables."""
    home, config_home = Path.home(), Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    files = [
        Path(folder) / "pip" / "pip.conf" for folder in (os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")
    ]
    files += [*_SYSTEM_FILES, home / ".pip" / "pip.conf", config_home / "pip" / "pip.conf"]
    files += [Path(sys.prefix) / "pip.conf"]
    if os.environ.get("PIP_CONFIG_FILE"):
        files.append(Path(os.environ["PIP_CONFIG_FILE"]))
    parser = configparser.RawConfigParser()
    for path in files:
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError) as error:
            raise DownloadFailed(f"{path} is no valid configuration of pip: {error}") from error
    found = dict(parser["global"]) if parser.has_section("global") else {}
    found |= dict(parser["download"]) if parser.has_section("download") else {}
    for key in ("index-url", "extra-index-url"):
        if value := os.environ.get("PIP_" + key.upper().replace("-", "_")):
            found[key] = value
    return found


def download_from_index(
    package: Package, folder: Path, progress: Progress, urls: list[str], *, total_bytes: int | None = None
) -> Path:
    """The wheel from the first of these simple indexes that has it, checked against the index's sha256.

    Raises DownloadFailed: no index has it, the connection broke, or the bytes are others.
    """
    import httpx2

    failures = []
    with httpx2.Client(follow_redirects=True, timeout=_TIMEOUT_S) as client:
        for url in urls:
            try:
                link, digest = _find_link(client, url, package)
                return _fetch(client, link, digest, folder / package.wheel_name, progress, total_bytes)
            except (httpx2.HTTPError, httpx2.InvalidURL, DownloadFailed) as error:
                failures.append(_without_passwords(f"{url}: {str(error) or type(error).__name__}".splitlines()[0]))
    raise DownloadFailed(
        f"{package.name} {package.version} could not be downloaded: {'; '.join(failures)}"
        f"\ncheck the network, or set {INDEX_VARIABLE} to the address of a simple index"
    )


def _find_link(client: Any, index_url: str, package: Package) -> tuple[str, str | None]:
    """(address, sha256 or None) of the wheel on the package's page."""
    page = f"{index_url.rstrip('/')}/{re.sub(r'[-_.]+', '-', package.name).lower()}/"
    response = client.get(page, headers={"Accept": _ACCEPT})
    response.raise_for_status()
    body = response.content[:_MAX_PAGE_BYTES]
    links = _json_links(body) if "json" in response.headers.get("content-type", "") else _html_links(body)
    for address, digest in links:
        target = urljoin(str(response.url), address)
        if unquote(Path(urlsplit(target).path).name) == package.wheel_name:
            return target, digest
    raise DownloadFailed(f"it does not have {package.wheel_name}")


def _json_links(body: bytes) -> Iterator[tuple[str, str | None]]:
    try:
        for file in json.loads(body)["files"]:
            yield str(file["url"]), file.get("hashes", {}).get("sha256")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DownloadFailed(f"its page is not a simple index: {error!r}") from error


def _html_links(body: bytes) -> Iterator[tuple[str, str | None]]:
    found: list[str] = []

    class Links(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            found.extend(value for key, value in attrs if tag == "a" and key == "href" and value)

    Links().feed(body.decode(errors="replace"))
    for link in found:
        address, fragment = urldefrag(link)
        yield address, fragment.removeprefix("sha256=") if fragment.startswith("sha256=") else None


def _fetch(
    client: Any, url: str, digest: str | None, target: Path, progress: Progress, total_bytes: int | None
) -> Path:
    sha256, done = hashlib.sha256(), 0
    with client.stream("GET", url) as response, target.open("wb") as file:
        response.raise_for_status()
        length = response.headers.get("content-length", "")
        total = int(length) if length.isdecimal() else total_bytes
        for chunk in response.iter_bytes(_CHUNK_BYTES):
            file.write(chunk)
            sha256.update(chunk)
            done += len(chunk)
            progress(f"downloading {target.name}", done, total)
    if digest is not None and sha256.hexdigest() != digest:
        raise DownloadFailed(f"{target.name} came with other bytes than the index says ({done} bytes)")
    return target


def _without_passwords(text: str) -> str:
    return re.sub(r"//[^/@\s]*@", "//", text)
