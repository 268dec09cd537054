"""Runs the README's two commands on bare Debian systems: what a new user's machine has, and no more.

Each system is a folder made by debootstrap with python3, git, make and ca-certificates; python3-venv
is added after `make demo` has asked for it. No Go, uv or compiler. The commands run as a plain user
with an empty home, in a clone of HEAD under a path with a space, without locale and terminal. Taken
from this machine: where packages come from and which certificates to trust. Logs are in .bare.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
LOGS = PROJECT / ".bare"
SUITES = ("bookworm", "trixie")
"""Python 3.11 and 3.13."""
COMMANDS = {"demo": "make demo && make demo-down", "test": "make test"}
PACKAGES = "python3,git,make,ca-certificates"
USER = "user"
CHECKOUT = f"/home/{USER}/a checkout"
NEEDED_GB = 15  # 12.2 were used by `make demo`
UNSHARE = ("unshare", "--mount", "--propagation=private", "--pid", "--fork", "--kill-child")
"""Mounts and processes of a private namespace end with its first process, however that ends."""

RUN = """
mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && mount --rbind /sys "$0/sys" || exit
# Not exec: as the namespace's first process, the shell reaps orphans, as init does.
chroot "--userspec=$USER" "$0" env -i "$@"
code=$?
for second in 1 2 3 4 5 6 7 8 9 10; do
    left=$(find "$0/proc" -maxdepth 1 -name '[0-9]*' -user 1000)
    [ "$left" ] || exit $code
    sleep 1
done
echo "Processes are left:"
for process in $left; do tr '\\0' ' ' <"$process/cmdline"; echo; done
exit 1
"""

INDEX_VARIABLES = re.compile(
    r"(https?|all|no)_proxy"
    r"|PIP_(INDEX_URL|EXTRA_INDEX_URL|TRUSTED_HOST|CERT|DEFAULT_TIMEOUT)"
    r"|UV_(DEFAULT_INDEX|INDEX|INDEX_URL|EXTRA_INDEX_URL|INSECURE_HOST|NATIVE_TLS|SYSTEM_CERTS|HTTP_TIMEOUT)"
    r"|GO(PROXY|SUMDB|NOSUMDB|PRIVATE|INSECURE)"
    r"|SSL_CERT_FILE|SSL_CERT_DIR|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE",
    re.IGNORECASE,
)
INDEX_FILES = ("/etc/resolv.conf", "/etc/pip.conf", "/etc/xdg/pip/pip.conf", "/etc/uv/uv.toml")
DEBIAN_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
CERTIFICATES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


class BareFailed(RuntimeError):
    """A step failed; the message has the end of its output."""


def main() -> int:
    """Test each suite; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suites", nargs="+", choices=SUITES, default=SUITES)
    parser.add_argument("--commands", nargs="*", choices=COMMANDS, default=list(COMMANDS))
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp"), help="where to make them")
    options = parser.parse_args()
    if missing := list(_missing(options.folder)):
        sys.stderr.writelines(f"make test-bare needs {what}.\n" for what in missing)
        return 1
    # SIGTERM cleans up, as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    LOGS.mkdir(exist_ok=True)
    try:
        for suite in options.suites:
            _test_suite(suite, options.commands, options.folder)
    except BareFailed as failure:
        say(str(failure))
        return 1
    return 0


def say(line: str) -> None:
    """Report progress, unbuffered even through a pipe."""
    print(f"==> {line}", flush=True)


def _missing(folder: Path) -> Iterator[str]:
    if os.getuid() != 0:
        yield "root, for debootstrap and chroot"
    for program, package in (("debootstrap", "debootstrap"), ("unshare", "util-linux")):
        if not shutil.which(program):
            yield f"{program} (Debian, Ubuntu: apt install {package})"
    if os.getuid() == 0 and shutil.which("unshare"):
        tried = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, check=False)
        if tried.returncode:
            yield f"the right to make namespaces ({tried.stderr.strip()})"
    free = shutil.disk_usage(folder).free / 1e9
    if free < NEEDED_GB:
        yield f"{NEEDED_GB} GB in {folder}, which has {free:.0f} (--folder names another place)"


def _test_suite(suite: str, commands: Sequence[str], folder: Path) -> None:
    with _folder(folder) as root:
        system = System(suite, root)
        system.make()
        system.expect_request_for_venv()
        system.install_venv()
        for name in commands:
            seconds = system.run(name, COMMANDS[name])
            say(f"{suite}: make {name} took {seconds // 60:.0f} min {seconds % 60:.0f} s")
        used = subprocess.check_output(["du", "--summarize", "--block-size=1MB", root], text=True)
        say(f"{suite}: {int(used.split()[0]) / 1000:.1f} GB in all")


@contextmanager
def _folder(place: Path) -> Iterator[Path]:
    """A folder that is removed in any case. Mounts below it exist in private namespaces only."""
    folder = Path(tempfile.mkdtemp(prefix="isoloss-bare-", dir=place))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        subprocess.run(["rm", "-rf", "--one-file-system", folder], check=True)


class System:
    """One Debian system in a folder."""

    def __init__(self, suite: str, root: Path) -> None:
        self.suite = suite
        self.root = root
        for log in LOGS.glob(f"{suite}-*.log"):
            log.unlink()

    def make(self) -> None:
        """Install Debian, create the user and clone HEAD as that user."""
        options = ("--variant=minbase", f"--include={PACKAGES}")
        self._check("system", [*UNSHARE, "debootstrap", *options, self.suite, str(self.root)])
        self._copy_configuration()
        self._check("system", self._inside(["useradd", "--create-home", USER], "root"))
        bundle = self.root / "srv" / "isoloss.bundle"
        # Root may not own the checkout, which git otherwise refuses.
        git = ["git", "-c", "safe.directory=*", "-C", str(PROJECT)]
        self._check("system", [*git, "bundle", "create", str(bundle), "HEAD"])
        self._check("system", self._inside(["git", "clone", f"/srv/{bundle.name}", CHECKOUT]))

    def expect_request_for_venv(self) -> None:
        """Debian's python3 comes without venv: the answer, after what the demo will do, names the package."""
        code = self._run("no-venv", self._inside(_in_checkout("make demo")))
        output = self._log("no-venv").read_text()
        if code == 0 or "Install the package python3-venv" not in output:
            raise BareFailed(f"{self.suite}: without python3-venv, make demo says: {output}")

    def install_venv(self) -> None:
        """Follow that answer."""
        install = ["apt-get", "install", "--yes", "--no-install-recommends", "python3-venv"]
        self._check("system", self._inside(install, "root"))

    def run(self, name: str, command: str) -> float:
        """Run a shell command in the checkout; returns the seconds it took."""
        say(f"{self.suite}: {command} (output in {self._log(name).relative_to(PROJECT)})")
        started = time.monotonic()
        self._check(name, self._inside(_in_checkout(command)))
        return time.monotonic() - started

    def _copy_configuration(self) -> None:
        """Where packages come from and which certificates to trust, as on this machine."""
        certificates = {os.environ.get(name, DEBIAN_CERTIFICATES) for name in CERTIFICATES}
        for path in (*certificates, *INDEX_FILES):
            self._copy(Path(path), path)
        own = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        for name in ("pip/pip.conf", "uv/uv.toml"):
            self._copy(own / name, f"/etc/xdg/{name}")

    def _copy(self, source: Path, target: str) -> None:
        if source.is_file():
            path = self.root / target.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, path)

    def _inside(self, command: Sequence[str], user: str = USER) -> list[str]:
        """The command line that runs `command` in this system as `user`."""
        variables = {n: value for n, value in os.environ.items() if INDEX_VARIABLES.fullmatch(n)}
        variables["HOME"] = "/root" if user == "root" else f"/home/{user}"
        variables["PATH"] = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
        assignments = [f"{name}={value}" for name, value in variables.items()]
        # The inner shell learns the user from its environment, and the command from its arguments.
        inner = ["env", f"USER={user}", "sh", "-c", RUN, str(self.root)]
        return [*UNSHARE, *inner, *assignments, *command]

    def _check(self, log: str, command: Sequence[str]) -> None:
        """Run a command. Raises BareFailed with the end of its output if it fails."""
        if code := self._run(log, command):
            path = self._log(log)
            tail = "\n".join(path.read_text().splitlines()[-30:])
            raise BareFailed(f"{self.suite}: status {code}; the end of {path}:\n{tail}")

    def _run(self, log: str, command: Sequence[str]) -> int:
        """Run a command without a terminal; returns its exit status."""
        with self._log(log).open("a") as output:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                check=False,
            )
        return done.returncode

    def _log(self, name: str) -> Path:
        return LOGS / f"{self.suite}-{name}.log"


def _in_checkout(command: str) -> list[str]:
    return ["sh", "-c", f"cd '{CHECKOUT}' && {command}"]


if __name__ == "__main__":
    sys.exit(main())
