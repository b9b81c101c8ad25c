#!/bin/bash
# Runs as root on every worker at every boot; what is done already stays as it is.
# `dataprep tpu setup` waits for the word in /run/dataprep-startup: running, done, or what failed.
set -u
export DEBIAN_FRONTEND=noninteractive
record="${DATAPREP_TPU_ROOT:-}/run/dataprep-startup"
failed=()
echo running >"$record"

try() { # a command, up to ten times: mirrors and file servers fail for moments
  local attempt
  for attempt in 1 2 3 4 5 6 7 8 9 10; do
    "$@" && return 0
    sleep $((attempt * 3))
  done
  failed+=("$*")
}

share() { # SOURCE FOLDER
  mountpoint -q "$2" && return 0
  mkdir -p "$2" && mount -t nfs -o vers=3,nosuid,nodev "$1" "$2" || return 1
  (cd "$2" && mountpoint -q . && chmod go+rwx .) 2>/dev/null || : # a read-only share
}

apt=(apt-get -o DPkg::Lock::Timeout=600 -y)
try "${apt[@]}" update
@packages@
@shares@
mkdir -m 1777 "${DATAPREP_TPU_ROOT:-}/tmp/tpu_logs" 2>/dev/null || : # whatever has the name is left as it is

if [ ${#failed[@]} -eq 0 ]; then echo done; else printf 'failed: %s\n' "${failed[*]}"; fi >"$record"
