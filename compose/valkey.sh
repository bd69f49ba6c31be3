#!/bin/sh
# Serve. The password comes from a file and goes in through standard input: a command line can be read by all.
# Arguments go to the server (--NAME VALUE).
set -eu
password=$(cat "${ONCOMMIT_REDIS_PASSWORD_FILE:?names the file with the password}")
# noeviction: it shall refuse rather than forget. The append-only file only spares most of a resync.
exec valkey-server --bind '*' --dir . --appendonly yes --appendfsync everysec --save '' \
  --maxmemory "${ONCOMMIT_REDIS_MAXMEMORY:-192mb}" --maxmemory-policy noeviction "$@" - <<EOT
requirepass $password
EOT
