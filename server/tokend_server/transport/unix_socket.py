"""Unix sockets to listen on: their place in the file system, who may connect, and what a dead server left there."""

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from tokend_server.config import UnixAddress

__all__ = ["UnixSocketFile"]

# What the kernel takes, without the zero at its end.
_MOST_PATH_BYTES = 107


class UnixSocketFile:
    """The file of one socket, from before it is bound until it is removed."""

    def __init__(self, address: UnixAddress, setting: str, mode: int) -> None:
        """Make sure that the path is free; a socket that nobody listens on is removed.

        Args:
            address: Where.
            setting: Which setting named it, for the errors.
            mode: Who may connect: the file's permission bits. It takes the right to write.

        Raises:
            OSError: The path is too long or taken, or its folder is not there; the message names it and the setting.
        """
        self._path, self._where, self._mode = Path(address.path), f"{address} ({setting})", mode
        self._identity: tuple[int, int] | None = None
        self._owner = 0
        if len(os.fsencode(address.path)) > _MOST_PATH_BYTES:
            raise OSError(
                errno.ENAMETOOLONG,
                f"cannot listen on {self._where}: longer than the {_MOST_PATH_BYTES} bytes that sockets have",
            )
        try:
            self._make_room()
        except OSError as problem:
            raise OSError(problem.errno, f"cannot listen on {self._where}: {problem.strerror}") from None

    def _make_room(self) -> None:
        if not self._path.parent.is_dir():
            raise OSError(errno.ENOENT, f"there is no folder {self._path.parent}")
        try:
            found = self._path.lstat()
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(found.st_mode):
            raise OSError(errno.EEXIST, "there is a file that is no socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(1)
            with contextlib.suppress(ConnectionRefusedError):
                probe.connect(str(self._path))
                raise OSError(errno.EADDRINUSE, "another server listens there")
        self._path.unlink()

    @contextlib.contextmanager
    def bound(self) -> Iterator[None]:
        """Bind in this block: the file has its mode from its first moment."""
        # Of the whole process; only at the start, where nothing else makes files.
        before = os.umask(0o777 & ~self._mode)
        try:
            yield
        finally:
            os.umask(before)
        found = self._path.lstat()
        self._identity = (found.st_dev, found.st_ino)
        self._owner = os.getpid()

    def remove(self) -> None:
        """Remove the file, unless it is another server's by now; in a fork of the process that bound it do nothing."""
        if self._owner != os.getpid():
            return
        with contextlib.suppress(OSError):
            found = self._path.lstat()
            if self._identity == (found.st_dev, found.st_ino):
                self._path.unlink()
