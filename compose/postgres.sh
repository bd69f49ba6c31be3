#!/bin/sh
# Make the cluster and its database at the first start, then serve. Arguments go to the server (-c NAME=VALUE).
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

# Newer minor releases load only the listed output plugins; older ones do not start with that setting.
if postgres --describe-config | grep -q '^output_plugin_libraries'; then
  set -- -c output_plugin_libraries=pgoutput,wal2json "$@"
fi
# A slot that no relay reads keeps so much WAL and no more: to lose it costs a resync, a full disk costs jobs.
exec postgres -D "$PGDATA" \
  -c listen_addresses='*' -c unix_socket_directories=/tmp \
  -c wal_level=logical -c max_slot_wal_keep_size="${ONCOMMIT_MAX_SLOT_WAL:-4GB}" \
  -c timezone=UTC -c log_timezone=UTC "$@"
