"""The sub-commands of `oncommit`, one module each."""
