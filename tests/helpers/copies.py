"""Copies by pickle, and a forked child that tells its parent what came of a function."""

import os
import pickle
import traceback


def pickled(value):
    """Return what comes out of its pickle."""
    return pickle.loads(pickle.dumps(value))


class Child:
    """A forked child that runs a function; `end` waits for it and says what it raised."""

    def __init__(self, function, *arguments):
        self.told, tell = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(tell)
            return
        code = 1
        try:
            os.write(tell, repr(function(*arguments)).encode())
            code = 0
        except SystemExit:
            code = 0
        except BaseException:
            os.write(tell, traceback.format_exc().encode())
        finally:
            os._exit(code)

    def end(self):
        """Wait for it; returns the repr of what the function returned."""
        with open(self.told, "rb") as told:
            said = told.read().decode()
        assert os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]) == 0, said
        return said


class WaitingChild(Child):
    """The same, which runs the function when `end` is called."""

    def __init__(self, function, *arguments):
        self._go_on, self._go = os.pipe()
        super().__init__(self._run, function, *arguments)

    def _run(self, function, *arguments):
        os.read(self._go_on, 1)
        return function(*arguments)

    def end(self):
        os.write(self._go, b"!")
        for pipe in (self._go_on, self._go):
            os.close(pipe)
        return super().end()
