#!/usr/bin/env bash
# bring_lmdeploy.sh DIR: LMDeploy 0.18's PyTorch engine and what it imports, for Python 3.12 on x86-64, 23 MB in DIR.
# For a machine without a network that has torch, Triton and transformers: PYTHONPATH=DIR:$PWD python -m benchmarks.gpu peers
# LMDeploy's other engine (turbomind) is left out. xgrammar is a stub.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
out=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
platforms=()
for name in manylinux_2_28 manylinux_2_27 manylinux_2_26 manylinux_2_17 manylinux2014; do
	platforms+=(--platform "${name}_x86_64")
done
"${PYTHON:-python3}" -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
	"${platforms[@]}" -d "$work" -c "$root/constraints.txt" \
	lmdeploy==0.18.0 pyzmq==27.3.0 pybase64==1.5.1 shortuuid==1.0.13 termcolor==3.3.0 mmengine_lite==0.10.7 addict==2.4.0 \
	yapf==0.43.0 pydantic pydantic_core annotated_types typing_inspection typing_extensions platformdirs
mkdir -p "$out/xgrammar"
for wheel in "$work"/*.whl; do "${PYTHON:-python3}" -m zipfile -e "$wheel" "$out"; done
find "$out/lmdeploy/turbomind" -mindepth 1 -delete
cp "$root/benchmarks/gpu/xgrammar_stub.py" "$out/xgrammar/__init__.py"
