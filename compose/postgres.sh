#!/bin/sh
# Make the cluster and its database at the first start, then serve. Arguments are settings, NAME=VALUE.
set -eu
umask 077
: "${ONCOMMIT_POSTGRES_PASSWORD_FILE:?names the file with the password of the superuser, postgres}"
database=${ONCOMMIT_POSTGRES_DATABASE:-oncommit}

if [ ! -e "$PGDATA" ]; then
  # Beside its place first: a start that was interrupted leaves no half a cluster.
  rm -rf "$PGDATA.new"
  initdb --pgdata="$PGDATA.new" --username=postgres --pwfile="$ONCOMMIT_POSTGRES_PASSWORD_FILE" \
    --auth=scram-sha-256 --encoding=UTF8 --locale=C.UTF-8 --data-checksums
  # "all" does not include replication, which needs a line of its own.
  printf 'host all all all scram-sha-256\nhost replication all all scram-sha-256\n' >> "$PGDATA.new/pg_hba.conf"
  printf 'CREATE DATABASE "%s"\n' "$database" | postgres --single -D "$PGDATA.new" postgres
  mv "$PGDATA.new" "$PGDATA"
fi

# Settings are a file and not options, which would be stronger than ALTER SYSTEM. This file is weaker than that, and
# stronger than what initdb wrote. It is written again at each start; the line that reads it stays.
setting() { printf "%s = '%s'\n" "$1" "$(printf %s "$2" | sed "s/[\\\\']/&&/g")"; }
{
  setting listen_addresses '*'
  setting unix_socket_directories /tmp
  setting wal_level logical
  # A slot that no relay reads keeps so much WAL and no more: to lose it costs a resync, a full disk costs jobs.
  setting max_slot_wal_keep_size "${ONCOMMIT_MAX_SLOT_WAL:-4GB}"
  setting timezone UTC
  setting log_timezone UTC
  # Newer minor releases load only the listed output plugins; older ones do not start with that setting.
  if postgres --describe-config | grep -q '^output_plugin_libraries'; then
    setting output_plugin_libraries 'pgoutput, wal2json'
  fi
  for argument in "$@"; do setting "${argument%%=*}" "${argument#*=}"; done
} > "$PGDATA/oncommit.conf.new"
mv "$PGDATA/oncommit.conf.new" "$PGDATA/oncommit.conf"
include="include_if_exists = 'oncommit.conf'"
grep -qxF "$include" "$PGDATA/postgresql.conf" || printf '%s\n' "$include" >> "$PGDATA/postgresql.conf"

exec postgres -D "$PGDATA"
