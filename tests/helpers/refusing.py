"""Have the kernel refuse system calls to this process and all that it starts, as sandboxes do."""

import ctypes
import errno
import os
import platform
import re
import struct
import subprocess
from typing import NamedTuple

MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # the kernel's names for them


def _numbers():
    """Read this machine's numbers of system calls from the C library's header, by their macros."""
    command = [os.environ.get("CC", "cc"), "-E", "-dM", "-x", "c", "-"]
    source = "#include <sys/syscall.h>"
    read = subprocess.run(command, input=source, capture_output=True, text=True, check=True)
    return dict(re.findall(r"^#define (__NR\w+) (\w+)$", read.stdout, re.MULTILINE))


NUMBERS = _numbers()


def _number_of(call):
    """Returns a call's number, or that of what is called where there is only that."""
    macro = f"__NR_{call}"
    if macro not in NUMBERS:
        macro = {"access": "__NR_faccessat", "poll": "__NR_ppoll"}.get(call, f"{macro}at")
    while not macro.isdigit():
        macro = NUMBERS[macro]
    return int(macro)


_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 38, 22, 2  # of prctl
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000  # what a filter answers; the second with an errno
_LOAD, _AND, _ANSWER = 0x20, 0x54, 0x06  # a filter's instructions
_JUMP_IF_EQUAL = 0x15
_NUMBER, _MACHINE, _ARGUMENTS = 0, 4, 16  # where these lie in what a filter looks at


class Refused(NamedTuple):
    """
    A system call, and the error that it ends in.

    Attributes:
        call: Its name.
        error: The name of an errno.
        argument: Only if this one of its arguments, from 0 on, has the value; None: always.
        value: The value, of which the bits of mask count.
    """

    call: str
    error: str
    argument: int | None = None
    value: int = 0
    mask: int = 0xFFFFFFFF


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def refuse(*refused):
    """
    Refuse system calls from now on, for the rest of this process's life.

    Raises:
        OSError: The kernel or a sandbox sets no filter, or there are no numbers for this machine.
    """
    if platform.machine() not in MACHINES:
        raise OSError(errno.ENOSYS, f"no numbers of system calls for {platform.machine()}")
    kernels_name = MACHINES[platform.machine()]
    code = [_op(_LOAD, _MACHINE), _op(_JUMP_IF_EQUAL, kernels_name, 1, 0), _op(_ANSWER, _ALLOW)]
    for each in refused:
        code += _part(each, _number_of(each.call))
    code.append(_op(_ANSWER, _ALLOW))
    program = _Program(len(code), b"".join(code))
    _prctl(_NO_NEW_PRIVILEGES, 1)
    _prctl(_SET_SECCOMP, _FILTER, ctypes.addressof(program))


def can_refuse():
    """Returns True if this machine sets filters; found out in a child, which is under one then."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            refuse(Refused("sysinfo", "EPERM"))
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _part(refused, number):
    """Answer with the error if it is this call; a jump goes to the next part otherwise."""
    answer = [_op(_ANSWER, _REFUSE | getattr(errno, refused.error))]
    if refused.argument is not None:
        argument = [
            _op(_LOAD, _ARGUMENTS + 8 * refused.argument),  # its lower half
            _op(_AND, refused.mask),
            _op(_JUMP_IF_EQUAL, refused.value, 0, 1),
        ]
        answer = argument + answer
    return [_op(_LOAD, _NUMBER), _op(_JUMP_IF_EQUAL, number, 0, len(answer)), *answer]


def _op(code, operand, if_true=0, if_false=0):
    return struct.pack("=HBBI", code, if_true, if_false, operand)


def _prctl(option, *arguments):
    values = [ctypes.c_ulong(each) for each in (*arguments, 0, 0, 0, 0)[:4]]
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(option, *values) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")
