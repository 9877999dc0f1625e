"""A real Postgres on a Unix socket, in a folder of its own that goes with it."""

import os
import pwd
import shutil
import subprocess
from pathlib import Path

# Debian's package does not put these on the PATH.
_HOMES = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
_ACCOUNT = "postgres"  # made by the package; the server refuses to run as root


class PostgresServer:
    """`folder` must have a short path, and be there for nobody else."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._account = _ACCOUNT if os.getuid() == 0 else None
        self._data = folder / "data"
        self.url = f"postgresql://postgres@/postgres?host={folder}"

    def start(self) -> None:
        """Returns once it answers."""
        if self._account is not None:
            account = pwd.getpwnam(self._account)
            os.chown(self._folder, account.pw_uid, account.pw_gid)
        self._run("initdb", "--pgdata", self._data, "--username=postgres", "--auth=trust", "--no-sync", "--no-locale")
        options = f"-c listen_addresses= -c unix_socket_directories={self._folder} -c fsync=off -c shared_buffers=8MB"
        log = self._folder / "log"
        self._run("pg_ctl", "start", "--wait", "--pgdata", self._data, "--log", log, "--options", options)

    def stop(self) -> None:
        self._run("pg_ctl", "stop", "--mode=immediate", "--pgdata", self._data)

    def _run(self, program: str, *arguments: object) -> None:
        places = os.pathsep.join([*map(str, _HOMES), os.environ.get("PATH", "")])
        found = shutil.which(program, path=places)
        assert found is not None, f"these tests need {program} (Debian: postgresql)"
        subprocess.run(
            [found, *map(str, arguments)],
            check=True,
            cwd=self._folder,
            user=self._account,
            stdout=subprocess.DEVNULL,
        )
