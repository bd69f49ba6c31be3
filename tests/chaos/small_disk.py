"""A small disk of its own for the blobs, so that a fault can fill it to the last byte."""

import os
import subprocess
from pathlib import Path

BLOBS_MB = 200  # room for 4,000 previews, and filled within a second


def mount(folder: Path) -> bool:
    """Make the folder, on a tmpfs if this process may mount one; tell whether it is."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={BLOBS_MB}m,mode=0755", "oncommit-chaos", str(folder)]
    try:
        return os.geteuid() == 0 and subprocess.run(command, check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def unmount(folder: Path) -> None:
    """Give the tmpfs back."""
    subprocess.run(["umount", str(folder)], check=False)
