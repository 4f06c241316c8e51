"""What the tests compare with and do not ship: fetched once with pip into a cache that git ignores.

The cache is the folder HEADWAY_TEST_CACHE, by default .cache/ of the repository.
"""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

LLAMA_CPP_PYTHON = "0.3.36"
_WANTED = tuple(
    f"vendor/llama.cpp/{path}"
    for path in (
        "models/",
        "conversion/",
        "gguf-py/gguf/",
        "ggml/include/",
        "ggml/src/ggml-common.h",
        "ggml/src/ggml-impl.h",
        "ggml/src/ggml-quants.",
        "ggml/src/ggml-cpu/ggml-cpu-impl.h",
    )
)


def cache_dir() -> Path:
    """The folder that fetched things stay in; made if it is not there."""
    found = Path(os.environ.get("HEADWAY_TEST_CACHE") or Path(__file__).resolve().parents[1] / ".cache")
    found.mkdir(parents=True, exist_ok=True)
    return found


@contextmanager
def _alone(name: str) -> Iterator[None]:
    """One process at a time makes the thing of this name."""
    with open(cache_dir() / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _made_once(name: str, make: Callable[[Path], None]) -> Path:
    """The folder `name` of the cache, filled by make(temporary folder) and renamed when it is whole."""
    target = cache_dir() / name
    if target.is_dir():
        return target
    with _alone(name):
        if not target.is_dir():
            part = Path(tempfile.mkdtemp(dir=cache_dir(), prefix=f"{name}.part-"))
            try:
                make(part)
                part.rename(target)
            finally:
                shutil.rmtree(part, ignore_errors=True)
    return target


def _fetch_llama_cpp(folder: Path) -> None:
    # Without build isolation pip asks the build backend (a dev dependency) for the metadata only: nothing is compiled.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--quiet", "--no-deps", "--no-build-isolation"]
    command += ["--no-binary", "llama-cpp-python", "--dest", str(folder), f"llama-cpp-python=={LLAMA_CPP_PYTHON}"]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    archive = next(folder.glob("*.tar.gz"))
    with tarfile.open(archive) as tar:
        for member in tar:
            inner = member.name.partition("/")[2]
            if member.isfile() and inner.startswith(_WANTED):
                member.name = inner.removeprefix("vendor/llama.cpp/")
                tar.extract(member, folder, filter="data")
    archive.unlink()


def llama_cpp_sources() -> Path:
    """llama.cpp's tree as the source package llama_cpp_python vendors it, of which are there:

    models/ggml-vocab-NAME.gguf     vocabularies without weights
    models/ggml-vocab-NAME.gguf.inp texts, separated by a line __ggml_vocab_test__
    models/ggml-vocab-NAME.gguf.out a line of ids for each
    models/templates/NAME.jinja     chat templates of real models
    conversion/, gguf-py/gguf/      how checkpoints become GGUF files
    ggml/                           as much of it as its quantisers need (ggml_quants.py)
    """
    return _made_once(f"llama_cpp-{LLAMA_CPP_PYTHON}-with-ggml", _fetch_llama_cpp)


def demo_model() -> Path:
    """The demo model's GGUF file, fetched as `headway pull demo` does."""
    from headway.checkpoint.demo import fetch_demo

    return fetch_demo(cache_dir())


_CONVERT = """
import json, sys
from pathlib import Path

root = sys.argv[1]
sys.path[:0] = [f"{root}/gguf-py", root]
import gguf, torch
from conversion import ModelBase, ModelType, get_model_architecture, get_model_class


def set_vocab(self):  # the test's models have no tokenizer that llama.cpp knows
    tokens = [f"<{number}>" for number in range(self.hparams["vocab_size"])]
    self.gguf_writer.add_tokenizer_model("gpt2")
    self.gguf_writer.add_tokenizer_pre("smollm")
    self.gguf_writer.add_token_list(tokens)
    self.gguf_writer.add_token_types([1] * len(tokens))


for source, target, fuse in json.loads(sys.argv[2]):
    # The converter reads config.json by transformers, which drops older keys that some of its classes still want.
    older = json.loads((Path(source) / "config.json").read_text())
    hparams = older | ModelBase.load_hparams(Path(source), False)
    model_class = get_model_class(get_model_architecture(hparams, ModelType.TEXT))
    model_class.set_vocab = set_vocab
    with torch.inference_mode():
        f32 = gguf.LlamaFileType.ALL_F32
        model_class(Path(source), f32, Path(target), eager=True, fuse_qkv=fuse, hparams=hparams).write()
"""


def convert_by_llama_cpp(models: Sequence[tuple[Path, Path, bool]]) -> None:
    """Hugging Face folders as GGUF files in float32 by llama.cpp's own converter, without tokenizers.

    `models` are (folder, file to write, whether q, k and v become one tensor).
    """
    # In a process of its own: its gguf package is another than the one installed.
    jobs = json.dumps([(str(source), str(target), fuse) for source, target, fuse in models])
    command = [sys.executable, "-c", _CONVERT, str(llama_cpp_sources()), jobs]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
