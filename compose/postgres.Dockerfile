# PostgreSQL 17 with wal2json, from Debian's packages.
FROM debian:trixie-slim

# The cluster is made at the first start, in the volume, and not by the package.
RUN apt-get update \
 && mkdir -p /etc/postgresql-common \
 && echo 'create_main_cluster = false' > /etc/postgresql-common/createcluster.conf \
 && apt-get install -y --no-install-recommends postgresql-17 postgresql-17-wal2json \
 && rm -rf /var/lib/apt/lists/* \
 && install -d -o postgres -g postgres -m 700 /var/lib/postgresql/data

COPY compose/postgres.sh /usr/local/bin/oncommit-postgres
RUN chmod 755 /usr/local/bin/oncommit-postgres
ENV PATH=/usr/lib/postgresql/17/bin:$PATH PGDATA=/var/lib/postgresql/data/17
USER postgres
EXPOSE 5432
# SIGINT is the fast shutdown: it disconnects clients, where SIGTERM would wait for each to leave.
STOPSIGNAL SIGINT
CMD ["oncommit-postgres"]
