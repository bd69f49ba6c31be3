# Valkey from Debian's packages.
FROM debian:trixie-slim

RUN apt-get update \
 && apt-get install -y --no-install-recommends valkey-server \
 && rm -rf /var/lib/apt/lists/* \
 && install -d -o valkey -g valkey -m 700 /var/lib/valkey/data

COPY compose/valkey.sh /usr/local/bin/oncommit-valkey
RUN chmod 755 /usr/local/bin/oncommit-valkey
USER valkey
WORKDIR /var/lib/valkey/data
EXPOSE 6379
CMD ["oncommit-valkey"]
