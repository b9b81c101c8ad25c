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
  mkdir -p "$2" && mount -t nfs -o vers=3 "$1" "$2" || return 1
  chmod go+rwx "$2" || : # a read-only share
}

apt=(apt-get -o DPkg::Lock::Timeout=600 -y)
try "${apt[@]}" update
@packages@
@shares@
mkdir -p /tmp/tpu_logs && chmod -R a+rwX /tmp/tpu_logs

if [ ${#failed[@]} -eq 0 ]; then echo done; else printf 'failed: %s\n' "${failed[*]}"; fi >"$record"
