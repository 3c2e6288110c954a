"""Start each worker anew with a context of multiprocessing, as replacements are under spawn."""

import pickle
from typing import Any

from shmloader.processes import starting
from shmloader.processes.birth import Birth
from shmloader.processes.sealed import Sealed, Spec, Succeed
from shmloader.processes.signals import Signals


def be(birth: Birth, sealed: Sealed, succeed: Succeed, signals: Signals) -> None:
    """Be the worker of a birth, if this process is the one."""
    signals.leave()
    if not birth.claim():
        return
    worker_id, progress = pickle.loads(birth.content())
    birth.close()
    succeed(sealed.open(), worker_id, progress)


class Anew:
    """Starts workers, each of which imports all by itself."""

    patience_s = 60.0  # with an interpreter that imports
    is_worker = True

    def __init__(self, context: Any, sealed: Sealed, succeed: Succeed, spec: Spec) -> None:
        self._context, self._sealed, self._succeed = context, sealed, succeed
        self._is_daemon, self._signals = spec.is_daemon, spec.signals

    def make(self, birth: Birth) -> Any:
        """Make the process for a birth; it is not started."""
        arguments = birth, self._sealed, self._succeed, self._signals
        return self._context.Process(target=be, args=arguments, daemon=self._is_daemon)

    def order(self, birth: Birth) -> Any:
        """Start the process for a birth."""
        process = self.make(birth)
        starting.start(process)
        return process

    def close(self) -> None:
        """Order nothing any more."""
