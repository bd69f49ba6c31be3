"""Faults of the store of documents and previews."""

import contextlib
import os

from ..fault import Fault


class StoreFull(Fault):
    """Its disk is full: a tmpfs filled to the last byte.

    Where a tmpfs may not be mounted (it takes root), the folder that blobs are written in is a file
    meanwhile, so that every write fails all the same.
    """

    name = "store-full"
    touches = frozenset({"store"})
    interrupts = True  # a preview that cannot be stored is released, and rendered again

    def inject(self) -> None:
        blobs = self.world.processes.blobs
        if self.world.store_is_tmpfs:
            self._ballast = blobs / "ballast"
            with contextlib.suppress(OSError), self._ballast.open("wb", buffering=0) as ballast:
                while True:
                    ballast.write(b"\0" * 65_536)
        else:
            self._incoming, self._aside = blobs / "incoming", blobs / "aside"
            self._incoming.rename(self._aside)
            self._incoming.touch()

    def heal(self) -> None:
        if self.world.store_is_tmpfs:
            self._ballast.unlink()
        else:
            self._incoming.unlink()
            os.rename(self._aside, self._incoming)  # noqa: PTH104


FAULTS: tuple[type[Fault], ...] = (StoreFull,)
