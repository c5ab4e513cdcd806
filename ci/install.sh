#!/usr/bin/env bash
# The locked requirements of some groups in .venv: `ci/install.sh infra policies`. `make setup` installs everything; a
# job of a workflow needs a tenth of that, and those that write comments next to nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

files=()
for group in "$@"; do files+=(-r "requirements/$group.txt"); done
if [ ${#files[@]} -eq 0 ]; then
  echo "usage: ci/install.sh GROUP…  (requirements/GROUP.txt)" >&2
  exit 2
fi
[ -x .venv/bin/python ] || python3 -m venv .venv
.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes "${files[@]}"
