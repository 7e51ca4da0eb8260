"""Blocks of commands in one shell, as somebody pastes them one after the other."""
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

COLUMNS = 60


class Block:
    """What a block has written (its errors, too, on a terminal), and the status of its last command."""

    def __init__(self, text, status):
        self.text, self.status = text, status


def run(blocks, folder, environment, terminal, patience):
    """Runs {name: commands} with bash in `folder`; returns {name: Block} and what went to stderr.

    On a terminal of COLUMNS columns, or with pipes and nothing to read. Blocks that were not reached within
    `patience` seconds are missing."""
    script = "".join(f"echo; echo '@begin {name}@'\n{commands}\necho \"@end {name} $?@\"\n"
                     for name, commands in blocks.items())
    path = folder.parent / "session.sh"
    path.write_text(script, encoding="utf-8")
    if terminal:
        output, errors = _on_terminal(path, folder, environment, patience), ""
    else:
        output, errors = _with_pipes(path, folder, environment, patience)
    found = {}
    for block in re.finditer(r"^@begin (.+?)@\r?\n(.*?)@end \1 (\d+)@\r?$", output, re.DOTALL | re.MULTILINE):
        found[block[1]] = Block(block[2].replace("\r\n", "\n"), int(block[3]))
    return found, errors or output


def _with_pipes(path, folder, environment, patience):
    errors_path = path.with_suffix(".stderr")
    output_path = path.with_suffix(".stdout")
    with open(errors_path, "w+b") as errors, open(output_path, "w+b") as output:
        shell = subprocess.Popen(["bash", path], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                                 stdout=output, stderr=errors, start_new_session=True)
        try:
            shell.wait(patience)
        except subprocess.TimeoutExpired:
            pass
        finally:
            _end(shell)
    return [one.read_text(encoding="utf-8", errors="replace") for one in (output_path, errors_path)]


def _on_terminal(path, folder, environment, patience):
    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))

    def take_terminal():
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    shell = subprocess.Popen(["bash", path], cwd=folder, env=environment, stdin=theirs, stdout=theirs,
                             stderr=theirs, start_new_session=True, preexec_fn=take_terminal)
    os.close(theirs)
    output = b""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if select.select([ours], [], [], 0.2)[0]:
            try:
                output += os.read(ours, 65536)
            except OSError:  # the last one has closed it
                break
        elif shell.poll() is not None:
            break
    _end(shell)
    os.close(ours)
    return output.decode("utf-8", errors="replace")


def _end(shell):
    """Ends what the session has started; nothing but a failure leaves something."""
    try:
        os.killpg(shell.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    shell.wait()
