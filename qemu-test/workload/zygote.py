# SPDX-License-Identifier: GPL-2.0 OR MIT
"""The zygote: imports the runtime once, warms up, freezes its heap and forks.

Usage: zygote.py --socket PATH [--lib DIR] [--sandbox MODULE]

It connects to the runner's Unix socket, says hello and obeys one JSON object a line:

    {"cmd": "hold"}                        forks a holder that stops itself; answers its pid
    {"cmd": "spawn", "cgroups": [DIR or null, ...], "seed": S}
                                           forks a sandbox into each cgroup; answers their pids
    {"cmd": "exit"}

A sandbox opens its own connection to the same socket (see sandbox.py, or the other module that
--sandbox names: it has the functions warm_up and main, too). It is born inside its
cgroup (clone3 with CLONE_INTO_CGROUP), so every page it copies is charged there.

Transparent huge pages are switched off for this process and everything it forks: a page of a huge
page cannot be kept by reference, and copying the heap would double it.
"""

import ctypes
import os
import sys

PR_SET_THP_DISABLE = 41
PR_GET_THP_DISABLE = 42
SYS_CLONE3 = 435
CLONE_INTO_CGROUP = 0x200000000
SIGCHLD = 17


def restart_prepared():
    """Switches THP off and fixes the hash seed, then restarts the interpreter once.

    Both hold across execve, so that the heap is made under them from its first page.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == 1 and os.environ.get("PYTHONHASHSEED") == "0":
        return
    if libc.prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_THP_DISABLE)")
    environment = dict(
        os.environ,
        PYTHONHASHSEED="0",
        PYTHONDONTWRITEBYTECODE="1",
        OPENBLAS_NUM_THREADS="1",
        OMP_NUM_THREADS="1",
        TZ="UTC",
        # Under QEMU's emulation numpy's AVX2 code faults at a gather instruction (vpgatherqq).
        NPY_DISABLE_CPU_FEATURES="AVX2",
    )
    os.execve(sys.executable, [sys.executable, *sys.argv], environment)


class CloneArgs(ctypes.Structure):
    """struct clone_args of clone3(2)."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            "flags pidfd child_tid parent_tid exit_signal stack stack_size tls set_tid "
            "set_tid_size cgroup"
        ).split()
    ]


def fork_all(cgroups):
    """Forks once for each cgroup directory; the child is a member from its first instruction.

    Returns (index, None) in a child, (None, pids) in the zygote. All forks follow each other
    closely, because every page that the zygote writes between two of them is copied once more.
    """
    api = ctypes.PyDLL(None, use_errno=True)  # keeps the GIL, as os.fork() does
    api.syscall.restype = ctypes.c_long
    syscall, before = api.syscall, api.PyOS_BeforeFork
    in_parent, in_child = api.PyOS_AfterFork_Parent, api.PyOS_AfterFork_Child
    number = ctypes.c_long(SYS_CLONE3)
    size = ctypes.c_size_t(ctypes.sizeof(CloneArgs))
    directories = [c and os.open(c, os.O_RDONLY | os.O_DIRECTORY) for c in cgroups]
    orders = [
        CloneArgs(flags=CLONE_INTO_CGROUP, exit_signal=SIGCHLD, cgroup=d)
        if d is not None
        else CloneArgs(exit_signal=SIGCHLD)
        for d in directories
    ]
    pointers = [ctypes.byref(order) for order in orders]
    pids = [0] * len(orders)
    for index, pointer in enumerate(pointers):
        before()
        pid = syscall(number, pointer, size)
        if pid == 0:
            in_child()
            return index, None
        in_parent()
        pids[index] = pid
    error = ctypes.get_errno()
    for directory in directories:
        if directory is not None:
            os.close(directory)
    if min(pids) < 0:
        raise OSError(error, "clone3 into a cgroup")
    return None, pids


def main():
    """Runs the zygote; never returns in a sandbox."""
    restart_prepared()

    import argparse
    import gc
    import importlib
    import signal

    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", required=True)
    parser.add_argument("--lib", default=os.path.dirname(os.__file__))
    parser.add_argument("--sandbox", default="sandbox")
    options = parser.parse_args()

    from runner import Runner

    # numpy, pandas, sqlite3, ast, unittest ... come with it.
    sandbox = importlib.import_module(options.sandbox)
    sandbox.warm_up(options.lib)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are reaped by the kernel
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what the warm-up freed is no use to anyone
    gc.freeze()
    gc.disable()

    runner = Runner(options.socket)
    version = sys.version.split()[0]
    runner.say(hello="zygote", pid=os.getpid(), version=version, thp_disabled=True)
    for order in runner.orders():
        if order["cmd"] == "hold":
            pid = os.fork()
            if pid == 0:
                os.kill(os.getpid(), signal.SIGSTOP)
                os._exit(0)
            runner.say(holder=pid)
        elif order["cmd"] == "spawn":
            index, pids = fork_all(order["cgroups"])
            if pids is None:
                runner.close()
                status = 1
                try:
                    sandbox.main(options.socket, options.lib, index, order)
                    status = 0
                except BaseException:
                    import traceback

                    traceback.print_exc()
                finally:
                    sys.stderr.flush()
                    os._exit(status)
            runner.say(pids=pids)


if __name__ == "__main__":
    main()
