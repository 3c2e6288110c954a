"""Have the kernel refuse system calls to this process and all that it starts, as sandboxes do."""

import ctypes
import errno
import os
import platform
import struct
from typing import NamedTuple

# By machine: the kernel's name for it, and the column of NUMBERS.
MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
NUMBERS = {
    "access": (21, 48),
    "clock_gettime": (228, 113),
    "clock_nanosleep": (230, 115),
    "clone": (56, 220),
    "clone3": (435, 435),
    "close": (3, 57),
    "close_range": (436, 436),
    "dup": (32, 23),
    "epoll_create1": (291, 20),
    "fallocate": (285, 47),
    "fchmod": (91, 52),
    "fcntl": (72, 25),
    "flock": (73, 32),
    "fstat": (5, 80),
    "ftruncate": (77, 46),
    "futex": (202, 98),
    "getdents64": (217, 61),
    "getpid": (39, 172),
    "getppid": (110, 173),
    "getpriority": (140, 141),
    "getrandom": (318, 278),
    "getrusage": (98, 165),
    "getsockname": (51, 204),
    "getsockopt": (55, 209),
    "gettid": (186, 178),
    "ioctl": (16, 29),
    "kill": (62, 129),
    "lseek": (8, 62),
    "madvise": (28, 233),
    "mbind": (237, 235),
    "memfd_create": (319, 279),
    "mkdir": (83, 34),
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "mremap": (25, 216),
    "munmap": (11, 215),
    "newfstatat": (262, 79),
    "openat": (257, 56),
    "pidfd_open": (434, 434),
    "pipe2": (293, 59),
    "poll": (7, 73),  # where there is only ppoll, that
    "prctl": (157, 167),
    "pread64": (17, 67),
    "prlimit64": (302, 261),
    "pwrite64": (18, 68),
    "read": (0, 63),
    "readlink": (89, 78),
    "recvfrom": (45, 207),
    "recvmsg": (47, 212),
    "rename": (82, 38),
    "rseq": (334, 293),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigsuspend": (130, 133),
    "sched_getaffinity": (204, 123),
    "sched_setaffinity": (203, 122),
    "sched_yield": (24, 124),
    "sendmsg": (46, 211),
    "sendto": (44, 206),
    "set_robust_list": (273, 99),
    "set_tid_address": (218, 96),
    "setpriority": (141, 140),
    "shutdown": (48, 210),
    "socketpair": (53, 199),
    "statx": (332, 291),
    "sysinfo": (99, 179),
    "tgkill": (234, 131),
    "timer_create": (222, 107),
    "uname": (63, 160),
    "unlink": (87, 35),
    "utimensat": (280, 88),
    "wait4": (61, 260),
    "waitid": (247, 95),
    "write": (1, 64),
    "writev": (20, 66),
}

_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 38, 22, 2  # of prctl
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000  # what a filter answers; the second with an errno
_LOAD, _AND, _ANSWER = 0x20, 0x54, 0x06  # a filter's instructions
_JUMP_IF_EQUAL = 0x15
_NUMBER, _MACHINE, _ARGUMENTS = 0, 4, 16  # where these lie in what a filter looks at


class Refused(NamedTuple):
    """
    A system call, and the error that it ends in.

    Attributes:
        call: One of NUMBERS.
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
    kernels_name, column = MACHINES[platform.machine()]
    code = [_op(_LOAD, _MACHINE), _op(_JUMP_IF_EQUAL, kernels_name, 1, 0), _op(_ANSWER, _ALLOW)]
    for each in refused:
        code += _part(each, NUMBERS[each.call][column])
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
