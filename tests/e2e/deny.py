"""Runs a program with one system call refused: deny.py NAME ERRNO PROGRAM [ARGUMENT ...]. x86-64 only; uses seccomp."""

import ctypes
import os
import struct
import sys

NUMBERS = {"io_uring_setup": 425}
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
ALLOW, ERRNO = 0x7FFF0000, 0x00050000


def statement(code, yes, no, value):
    return struct.pack("<HBBI", code, yes, no, value)


def main():
    name, error, *command = sys.argv[1:]
    rows = b"".join([
        statement(0x20, 0, 0, 0),                      # load the number of the system call
        statement(0x15, 0, 1, NUMBERS[name]),          # is it this one?
        statement(0x06, 0, 0, ERRNO | int(error)),     # refuse
        statement(0x06, 0, 0, ALLOW),                  # allow
    ])
    held = ctypes.create_string_buffer(rows, len(rows))
    program = struct.pack("<HxxxxxxQ", len(rows) // 8, ctypes.addressof(held))
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or library.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0):
        sys.exit(f"seccomp: {os.strerror(ctypes.get_errno())}")
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
