"""Python processes that start at once, forked from one that has imported what they need.

Importing torch and transformers costs seconds of CPU, and so does importing the operator. A test that is about
starting itself, or about what is read while importing, starts Python as usual.
"""

import atexit
import contextlib
import gc
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

SERVER = "import sys; from tests.support import warm_python; warm_python.serve(*sys.argv[1:])"
NUMBER = struct.Struct("=i")
PROJECT = Path(__file__).parents[2]


class Process:
    """What subprocess.Popen tells of a process and does to it."""

    args: list[str]
    pid: int
    returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        return self._exit_code(0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code; raises subprocess.TimeoutExpired after `timeout` seconds."""
        code = self._exit_code(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def _exit_code(self, timeout: float | None) -> int | None:
        """None after so many seconds; without a timeout it waits."""
        raise NotImplementedError

    def send_signal(self, number: int) -> None:
        """Signal it, unless it was seen to end."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


class WarmProcess(Process):
    """One that WarmPython started, in the process that asked for it."""

    def __init__(self, connection: socket.socket, arguments: Sequence[str]) -> None:
        self._connection = connection
        self.args = list(arguments)
        self.pid = self._read()

    def _read(self) -> int:
        content = self._connection.recv(NUMBER.size, socket.MSG_WAITALL)
        if len(content) < NUMBER.size:
            raise RuntimeError("the process that others are forked from has died")
        return int(NUMBER.unpack(content)[0])

    def _exit_code(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._connection], [], [], timeout)[0]:
            self.returncode = self._read()
            self._connection.close()
        return self.returncode


class WarmPython:
    """Starts processes like `sys.executable`, forked from one that has run `prelude`.

    `in_child` is code that each of them runs first, with its own environment: for modules that read the environment
    when they are imported.
    """

    def __init__(self, prelude: str, in_child: str = "") -> None:
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Threads that a library starts while it is imported would not survive the fork.
        alone = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        path = f"{PROJECT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        with theirs:
            command = [sys.executable, "-c", SERVER, str(theirs.fileno()), prelude, in_child]
            self._server = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **alone, "PYTHONPATH": path},
            )

    def start(
        self,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        output: IO[Any] | None = None,
        errors: IO[Any] | None = None,
    ) -> WarmProcess:
        """Start `python *arguments`, which begin with -m or -c; `errors` go to `output` unless given."""
        ours, theirs = socket.socketpair()
        out = output or sys.__stdout__
        assert out is not None
        descriptors = [theirs.fileno(), out.fileno(), (errors or out).fileno()]
        values = {**(os.environ if environment is None else environment)}
        # In a file: a task may be larger than what one message holds.
        with theirs, tempfile.TemporaryFile() as request:
            request.write(
                json.dumps([list(arguments), values, str(folder or Path.cwd())]).encode()
            )
            request.seek(0)
            descriptors.append(request.fileno())
            socket.send_fds(self._connection, [b"start"], descriptors)
            return WarmProcess(ours, arguments)

    def run(
        self,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        timeout: float = 500,
    ) -> subprocess.CompletedProcess[str]:
        """As subprocess.run(capture_output=True, text=True)."""
        with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
            started = self.start(
                arguments, environment=environment, folder=folder, output=output, errors=errors
            )
            code = started.wait(timeout)
            output.seek(0)
            errors.seek(0)
            return subprocess.CompletedProcess(started.args, code, output.read(), errors.read())

    def end(self) -> None:
        """Start no more; those that run are left alone."""
        self._connection.close()
        self._server.wait(30)


def serve(descriptor: str, prelude: str, in_child: str) -> None:
    """The process that others are forked from, until its client closes the connection."""
    exec(prelude, {"__name__": "prelude"})
    threads = [*Path("/proc/self/task").iterdir()]
    assert len(threads) == 1, f"importing started {len(threads) - 1} threads, which a fork loses"
    gc.freeze()  # a collection would write to every page that is shared with the forked processes
    with socket.socket(fileno=int(descriptor)) as connection:
        while True:
            message, descriptors, _, _ = socket.recv_fds(connection, 16, 4)
            _reap()
            if not message:
                return
            if os.fork() == 0:
                connection.close()
                break
            for number in descriptors:
                os.close(number)
    reply, output, errors, request = descriptors
    _fork_and_wait(reply, output, errors)
    with open(request, "rb") as file:
        arguments, environment, folder = json.load(file)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    exec(in_child, {"__name__": "in_child"})
    run_as_main(arguments)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _fork_and_wait(reply: int, output: int, errors: int) -> None:
    """Return in a forked process alone; this one tells its number, waits for it, and tells its exit code."""
    pid = os.fork()
    if pid == 0:
        os.close(reply)
        os.dup2(output, 1)
        os.dup2(errors, 2)
        os.close(output)
        os.close(errors)
        return
    with socket.socket(fileno=reply) as connection:
        connection.sendall(NUMBER.pack(pid))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        try:
            connection.sendall(NUMBER.pack(code))
        finally:
            os._exit(0)


def run_as_main(arguments: Sequence[str]) -> NoReturn:
    """As `python *arguments`, and the end of this process."""
    kind, what, *rest = arguments
    code = 1
    try:
        if kind == "-m":
            sys.argv = [what, *rest]
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            assert kind == "-c", kind
            sys.argv = ["-c", *rest]
            exec(compile(what, "<string>", "exec"), sys.modules["__main__"].__dict__)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 (as the interpreter does)
        traceback.print_exc()
    # Taking down every module, as the interpreter does, would take as long as importing some.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class ForkedProcess(Process):
    """In a process that WarmPython started, what subprocess.Popen is elsewhere: as `python *command[1:]`."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        self.args = list(command)
        ends = {signal.SIGTERM, signal.SIGINT}
        # A signal that comes before the child has handlers of its own ends it, as it ends a Python that starts.
        kept = signal.pthread_sigmask(signal.SIG_BLOCK, ends)
        self.pid = os.fork()
        if self.pid == 0:
            for number in ends:
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, kept)
        if self.pid == 0:
            os.environ.clear()
            os.environ.update(env)
            run_as_main(command[1:])

    def _exit_code(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, 0 if timeout is None else os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode
