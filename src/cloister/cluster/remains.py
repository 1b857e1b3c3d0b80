"""What a session of Ray on this machine leaves when its driver is killed: agents, which this ends.

Ray's own processes notice that their driver has ended; two agents that its raylet has started do not, and
keep ports and memory. A small process of our own waits for the driver's end, and ends whatever still has to
do with the session's folder. It needs ``/proc``; elsewhere nothing is done.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: Ends the processes that have to do with the folder of the first argument, soon after its own standard input
#: has ended: those that name it in their command, or have a file in it open.
_WATCH = """
import os, signal, sys, time

def of_folder(number):
    try:
        with open(f"/proc/{number}/cmdline", "rb") as command:
            if os.fsencode(sys.argv[1]) in command.read():
                return True
        files = os.listdir(f"/proc/{number}/fd")
        return any(os.readlink(f"/proc/{number}/fd/{file}").startswith(sys.argv[1] + "/") for file in files)
    except OSError:
        return False

sys.stdin.read()
for how, patience in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0)):
    until = time.monotonic() + patience
    left = [-1]
    while left and time.monotonic() < until:
        left = [int(n) for n in os.listdir("/proc") if n.isdigit() and int(n) != os.getpid() and of_folder(n)]
        time.sleep(0.5)
    for number in left:
        try:
            os.kill(number, how)
        except OSError:
            pass
"""


@contextmanager
def ended_with_this_process(folder: str) -> Iterator[None]:
    """Have the processes of a session's folder ended, should this process be killed meanwhile."""
    if not Path("/proc/self/cmdline").exists():
        yield
        return
    command = [sys.executable, "-I", "-S", "-c", _WATCH, folder]
    watch = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield
    finally:
        watch.kill()  # Ray was shut down in good order
        watch.communicate()
