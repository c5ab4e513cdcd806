#!/usr/bin/env bash
# Show what was pushed for a stack, as a change to be committed: `ci/image-lock.sh STACK`.
set -euo pipefail
cd "$(dirname "$0")/.."

lock="images.${1:?usage: ci/image-lock.sh STACK}.toml"
git add --intent-to-add -- "$lock"
change=$(git diff -- "$lock")
if [ -z "$change" ]; then change="($lock is up to date)"; fi
printf '%s\n' "$change"
if [ -n "${GITHUB_STEP_SUMMARY:-}" ]; then
  # shellcheck disable=SC2016 # the backticks are Markdown's
  {
    printf '## What was pushed for stack `%s`\n\n' "$1"
    printf 'Commit `%s` (an artifact of this run): from then on the stack runs these images.\n\n' "$lock"
    printf '```diff\n%s\n```\n' "$change"
  } >>"$GITHUB_STEP_SUMMARY"
fi
