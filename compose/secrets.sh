#!/bin/sh
# Make the secrets that compose.yaml mounts, each a file: secrets.sh [FOLDER], by default `secrets` beside this
# script. What is there stays, so it is safe to repeat; to change a secret, remove its files and see the runbook.
set -eu
umask 077
folder=${1:-$(dirname "$0")/secrets}
mkdir -p "$folder"
chmod 700 "$folder"

# 32 bytes of the kernel's randomness as hexadecimal digits, which need no escape in a URL.
random() { od -An -N32 -tx1 /dev/urandom | tr -d ' \n'; }

# The folder keeps others of this machine out. The files are readable because each container runs under an id
# of its own, and a mounted file keeps the mode that it has here.
keep() {
  if [ ! -s "$folder/$1" ]; then
    printf '%s\n' "$2" > "$folder/$1.new"
    chmod 444 "$folder/$1.new"
    mv "$folder/$1.new" "$folder/$1"
  fi
}

keep postgres_password "$(random)"
keep owner_url "postgresql://postgres:$(cat "$folder/postgres_password")@postgres/oncommit"
for role in portal relay worker operator; do
  keep "${role}_url" "postgresql://oncommit_$role:$(random)@postgres/oncommit"
done
keep redis_password "$(random)"
keep redis_url "redis://:$(cat "$folder/redis_password")@valkey:6379/0"
keep grafana_password "$(random)"
