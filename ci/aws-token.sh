#!/usr/bin/env bash
# GitLab: put the job's token where AWS's libraries look for it. They ask for the role themselves, and again when it ends.
set -euo pipefail

umask 077
printf '%s' "${AWS_TOKEN:?the job has no id_tokens: AWS_TOKEN}" >"${AWS_WEB_IDENTITY_TOKEN_FILE:?names the file for it}"
