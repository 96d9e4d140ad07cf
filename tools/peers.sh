#!/usr/bin/env bash
# Installs the other gateways that the bench measures beside ours into an environment of their own. Each is installed by
# itself: one that cannot be had here is named, and the bench goes on without it. Safe to run again.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
VENV=${BROWNOUT_PEERS_VENV:-.venv-peers}

"$VENV/bin/python" -c 'import pip' 2>/dev/null || "$PYTHON" -m venv "$VENV"
missing=()
for peer in vllm-router smg 'litellm[proxy]'; do
  echo "peers: $peer"
  "$VENV/bin/python" -m pip --disable-pip-version-check -q install --only-binary :all: -c constraints-peers.txt "$peer" ||
    missing+=("$peer")
done
((${#missing[@]} == 0)) || echo "peers: not to be had here: ${missing[*]}"
