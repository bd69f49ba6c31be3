"""The operator's hands: the `oncommit` command, and the local stack."""
