"""Several workers on one port: what their parent holds, and what each of its children does.

The parent loads the tokenizer once and forks; the workers have it in common, page by page, until one of them writes.
The parent itself has no thread, no gRPC and no part in any call.
"""

import contextlib
import gc
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tokend._version import __version__
from tokend_server import logs
from tokend_server.app import App, Share, announce, open_ops, ready_line, where
from tokend_server.config import Address, Settings
from tokend_server.credentials import caller_names, read_credentials, warn_of_exposure
from tokend_server.errors import CredentialsError
from tokend_server.loading import Served, load_served
from tokend_server.metric_rows import SharedRows
from tokend_server.metrics import Metrics, methods_of
from tokend_server.native_stderr import stderr_aside
from tokend_server.process_metrics import ProcessTable
from tokend_server.stop_signals import StopSignals
from tokend_server.supervisor import ChildContext, Job, Supervisor
from tokend_server.transport.held_port import HeldPort
from tokend_server.transport.ops_http import OpsServer
from tokend_server.transport.routing import SERVICE

__all__ = ["Fleet"]

_log = logs.get("fleet")
_PARALLELISM = "TOKENIZERS_PARALLELISM"


class Fleet:
    """A server of several workers and a child for the ops port, under a parent that only watches."""

    def __init__(self, settings: Settings, n_workers: int, stop: StopSignals) -> None:
        """Take the ports; nobody listens on the gRPC port yet.

        Args:
            settings: What is asked for.
            n_workers: How many workers serve.
            stop: Made with `watch_children`.

        Raises:
            OSError: A port cannot be had; the message names it and the setting.
            CredentialsError: A file of tokens or certificates cannot be used.
        """
        self._settings = settings
        self._credentials = read_credentials(settings)
        self._callers = caller_names(settings)
        self._n_workers = n_workers
        # A row for each worker, and one for this process.
        n_cells = Metrics(methods_of(SERVICE), version=__version__, callers=self._callers).n_cells
        self._rows = SharedRows(n_workers + 1, n_cells)
        self._processes = ProcessTable(workers=range(n_workers), n_others=2)
        self._ops_place, own_place = n_workers, n_workers + 1
        self._processes.began(own_place, os.getpid())
        self._metrics = self._metrics_on(n_workers)
        if not isinstance(settings.listen, Address):
            raise OSError(0, f"workers cannot share {settings.listen} (listen)")
        warn_of_exposure(settings)
        self._port = HeldPort(settings.listen, shared=settings.allow_port_sharing)
        try:
            self._ops = open_ops(settings, self._metrics, self._why_not_ready)
        except OSError:
            self._port.close()
            raise
        self._supervisor = Supervisor(stop, self, grace_s=settings.drain_grace_s)
        self._shared_folder: Path | None = None

    def start(self) -> str:
        """Load the tokenizer and start the workers.

        Returns:
            The ready line, once all workers serve; "" if a stop signal came before.

        Raises:
            TokenizerFileError: The tokenizer file cannot be served.
            StartFailed: A worker cannot start.
            OSError: There is no process to be had for one.
        """
        # A collection writes to every object that it looks at, and so would unshare its page.
        gc.freeze()
        # The ops port first, so that it tells of the loading, and is small.
        if self._ops is not None:
            self._supervisor.spawn(
                Job(
                    name="ops", place=self._ops_place, run=partial(self._serve_ops, self._ops), ends_last=True
                )
            )
        started_s = time.monotonic()
        with _serial_library(), stderr_aside(self._metrics.native_stderr_lines.add):
            self._shared_folder = _folder_in_memory()
            served = load_served(self._settings, shared_folder=self._shared_folder)
        announce(served.tokenizer, load_s=time.monotonic() - started_s)
        gc.collect()
        gc.freeze()
        for n in range(self._n_workers):
            self._supervisor.spawn(Job(name=f"worker {n}", place=n, run=partial(self._work, n, served)))
        if not self._supervisor.wait_ready():
            return ""
        return ready_line(
            served.tokenizer, grpc=self._port.address, ops=where(self._ops), workers=self._n_workers
        )

    def watch(self) -> None:
        """Keep all workers alive until a stop signal comes."""
        self._supervisor.watch()

    def stop(self) -> bool:
        """Drain all workers and end everything; tells whether all ended in time. Once, also after a failed start."""
        _log.info("stopping", workers=self._n_workers)
        all_well = self._supervisor.stop()
        if self._ops is not None:
            self._ops.stop()
        self._port.close()
        if self._shared_folder is not None:
            shutil.rmtree(self._shared_folder, ignore_errors=True)
        return all_well

    def _work(self, n: int, served: Served, context: ChildContext) -> None:
        """Be a worker. Its ports are its own; those of the parent are closed here, and stay open there."""
        if self._ops is not None:
            self._ops.stop()
        try:
            self._credentials.refresh()
        except CredentialsError as error:
            _log.error(
                "a worker does not serve with the files of credentials that there are", problem=str(error)
            )
            raise OSError(0, str(error)) from None
        share = Share(
            address=self._port.address,
            metrics=self._metrics_on(n),
            served=served,
            credentials=self._credentials,
        )
        app = App(self._settings, share)
        self._port.close()
        app.start()
        context.ready()
        context.stop.wait(context.parent_end)
        app.stop()

    def _serve_ops(self, ops: OpsServer, context: ChildContext) -> None:
        """Be the child that answers on the ops port until everything else has ended."""
        self._port.close()
        ops.start()
        context.ready()
        # A signal to all processes is for the workers; at the pipe's end none of them is left.
        os.read(context.parent_end, 1)
        ops.stop()

    def _metrics_on(self, row: int) -> Metrics:
        return Metrics(
            methods_of(SERVICE),
            version=__version__,
            row=self._rows.row(row),
            processes=self._processes,
            callers=self._callers,
        )

    def _why_not_ready(self) -> str | None:
        n_serving = self._metrics.worker.count("serving")
        if n_serving == self._n_workers:
            return None
        if not n_serving and self._metrics.worker.count("draining"):
            return "shutting down"
        return f"{n_serving} of {self._n_workers} workers serve"

    def began(self, place: int, pid: int) -> None:
        """Note a child's process."""
        self._processes.began(place, pid)

    def ended(self, place: int, cpu_s: float) -> None:
        """Clear what a dead process has left; its counts stay."""
        self._processes.ended(place, cpu_s)
        if place < self._n_workers:
            self._rows.bury(place, self._metrics.gauges())

    def waits(self, place: int, *, waits: bool) -> None:
        """Count a worker that is down, or that was."""
        if place < self._n_workers:
            self._metrics.worker.down(1 if waits else -1)
            if not waits:
                self._metrics.worker_restarts.add(1)


def _folder_in_memory() -> Path | None:
    """Make a folder for what the workers keep for each other where the state folder cannot be written, if one can be had."""
    # None: where temporary files are usual.
    for place in ("/dev/shm", None):  # noqa: S108 (the folder in it is made anew, for this user alone)
        with contextlib.suppress(OSError):
            return Path(tempfile.mkdtemp(prefix="tokend-", dir=place))
    return None


@contextlib.contextmanager
def _serial_library() -> Iterator[None]:
    """Keep the library from starting threads: a fork would lose them, and the child would wait for them."""
    before = os.environ.get(_PARALLELISM)
    os.environ[_PARALLELISM] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_PARALLELISM]
        else:
            os.environ[_PARALLELISM] = before
