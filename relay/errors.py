"""What can keep the relay from reading committed rows, told apart once.

    StreamError
    |-- ServerAway           PostgreSQL is away, stopping, frozen, or cut the link: connect again
    |-- SlotMissing          no slot of that name in this database: make one, then resync
    |-- SlotForeign          the name belongs to another database of the cluster: nobody here may touch it
    |-- SlotBusy             somebody else reads from it: stand by
    |-- SlotInvalidated      its WAL is gone: drop it, make it again, then resync
    |-- SlotWrongPlugin      it was made for the other decoder
    |-- SlotCreationBlocked  a write transaction is open somewhere in the cluster: poll meanwhile
    |-- PublicationMissing   pgoutput has nothing to stream
    |-- PluginMissing        the server has no such library
    |-- PluginForbidden      the server has it, and does not allow it
    |-- ReplicationRefused   no logical stream is permitted, or its connection is refused
    `-- DecodeError          a frame that is not what the plugin's protocol says

Each message says what to do about it.
"""


class StreamError(Exception):
    """Root of everything that reading the WAL raises."""


class ServerAway(StreamError):
    """The link is gone, or the server is stopping; says nothing about the slot."""


class SlotMissing(StreamError):
    """The slot does not exist."""


class SlotForeign(StreamError):
    """The slot's name is taken by another database of the same cluster."""


class SlotBusy(StreamError):
    """Another connection holds the slot."""


class SlotInvalidated(StreamError):
    """The slot exists, and its WAL was removed: it can never be read again."""


class SlotWrongPlugin(StreamError):
    """The slot was made with another output plugin than the decoder's."""


class SlotCreationBlocked(StreamError):
    """A slot could not be made in time: an open write transaction has to end first."""


class PublicationMissing(StreamError):
    """The publication is not there."""


class PluginMissing(StreamError):
    """The output plugin's library is not installed in the server."""


class PluginForbidden(StreamError):
    """The server's `output_plugin_libraries` does not list the plugin."""


class ReplicationRefused(StreamError):
    """The server refuses logical replication to this role, or altogether."""


class DecodeError(StreamError):
    """A frame of the stream is malformed. Its rows are still in the table: count it, resync, go on."""


def forbidden(plugin: str) -> PluginForbidden:
    """Return the error for a plugin that the server does not allow, with the setting that does."""
    return PluginForbidden(
        f"the server does not allow the output plugin {plugin}: as a superuser run "
        f"ALTER SYSTEM SET output_plugin_libraries = pgoutput, {plugin}; SELECT pg_reload_conf(); "
        "(no quotes around the list, and pgoutput stays in it), or set ONCOMMIT_DECODER=pgoutput"
    )


def missing(plugin: str) -> PluginMissing:
    """Return the error for a plugin that the server does not have, with what provides it."""
    return PluginMissing(
        f"the server has no output plugin {plugin}: install it on the database host "
        f"(Debian: postgresql-NN-{plugin}), or set ONCOMMIT_DECODER=pgoutput"
    )
