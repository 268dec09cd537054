"""Folders of a file:// store that several users of one group write to.

On a shared volume the operator and the tasks run as different users. A folder created with the
usual umask of 022 would admit its creator alone.
"""

from __future__ import annotations

import stat
from pathlib import Path


def create_folders(folder: Path) -> None:
    """Create `folder` and its missing parents, group-writable wherever the parent is.

    So the administrator decides, by the mode of the volume's root: 2770 with a group that both
    sides have (fsGroup or supplementalGroups) shares everything below it, and 0755 shares nothing.
    The setgid bit, which keeps the group, is inherited from the parent by the kernel.
    Raises OSError where a folder cannot be created.
    """
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        try:
            each.mkdir()
        except FileExistsError:
            continue  # created by another process meanwhile, which sets its mode
        if each.parent.stat().st_mode & stat.S_IWGRP:
            # The umask applies to mkdir's mode, so the bit has to be set afterwards.
            each.chmod(stat.S_IMODE(each.stat().st_mode) | stat.S_IWGRP)
