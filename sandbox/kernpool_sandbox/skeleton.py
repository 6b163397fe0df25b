"""The made-up part of the host image: /etc, /home, /root, /var, /run, /tmp. Nothing of the host's own ones is in it.

Of the host's /etc only what programs under /usr cannot do without is copied, and of that only what everybody may read:
links of the alternatives system, the linker's cache, certificates of public authorities, tables of names and types.
"""

import os
import shutil
import stat
from pathlib import Path
from typing import final

HOSTNAME = "sandbox"
USER_UID = 1000

COPIED_FROM_ETC = (
    "alternatives",
    "bash.bashrc",
    "ca-certificates",
    "ca-certificates.conf",
    "debian_version",
    "fonts",
    "inputrc",
    "java-*-openjdk",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "login.defs",
    "magic",
    "magic.mime",
    "mime.types",
    "os-release",
    "perl",
    "pki/ca-trust",
    "pki/tls",
    "protocols",
    "python3",
    "python3.*",
    "rpc",
    "services",
    "shells",
    "ssl/certs",
    "ssl/openssl.cnf",
    "timezone",
)
"""What is copied from the host's /etc, as glob patterns; private keys beside certificates are not world-readable."""
COPIED_BYTES_MAX = 32 << 20

_DIRECTORIES: tuple[tuple[str, int], ...] = (
    ("dev", 0o755),
    ("etc", 0o755),
    ("home", 0o755),
    ("media", 0o755),
    ("mnt", 0o755),
    ("opt", 0o755),
    ("proc", 0o555),
    ("root", 0o700),
    ("run", 0o755),
    ("run/lock", 0o1777),
    ("srv", 0o755),
    ("sys", 0o555),
    ("tmp", 0o1777),
    ("usr", 0o755),
    ("var", 0o755),
    ("var/cache", 0o755),
    ("var/lib", 0o755),
    ("var/local", 0o755),
    ("var/log", 0o755),
    ("var/mail", 0o755),
    ("var/opt", 0o755),
    ("var/spool", 0o755),
    ("var/tmp", 0o1777),
)

_USERS = """\
root:x:0:0:root:/root:/bin/sh
daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin
bin:x:2:2:bin:/bin:/usr/sbin/nologin
sys:x:3:3:sys:/dev:/usr/sbin/nologin
games:x:5:60:games:/usr/games:/usr/sbin/nologin
man:x:6:12:man:/var/cache/man:/usr/sbin/nologin
mail:x:8:8:mail:/var/mail:/usr/sbin/nologin
www-data:x:33:33:www-data:/var/www:/usr/sbin/nologin
_apt:x:42:65534::/nonexistent:/usr/sbin/nologin
user:x:1000:1000:user:/home/user:/bin/sh
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
"""
_GROUPS = """\
root:x:0:
daemon:x:1:
bin:x:2:
sys:x:3:
adm:x:4:
tty:x:5:
disk:x:6:
mail:x:8:
man:x:12:
www-data:x:33:
shadow:x:42:
utmp:x:43:
staff:x:50:
games:x:60:
users:x:100:
user:x:1000:
nogroup:x:65534:
"""
_HOSTS = f"""\
127.0.0.1 localhost
::1 localhost ip6-localhost ip6-loopback
127.0.1.1 {HOSTNAME}
"""
_NSSWITCH = """\
passwd: files
group: files
shadow: files
hosts: files dns
networks: files
protocols: files
services: files
ethers: files
rpc: files
"""
_PROFILE = """\
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
if [ -n "${BASH_VERSION-}" ] && [ -f /etc/bash.bashrc ]; then . /etc/bash.bashrc; fi
for script in /etc/profile.d/*.sh; do if [ -r "$script" ]; then . "$script"; fi; done
unset script
"""

RESOLV_CONF = "# this sandbox has no network\n"

MADE_UP_IN_ETC: dict[str, str] = {
    "passwd": _USERS,
    "group": _GROUPS,
    "hosts": _HOSTS,
    "hostname": f"{HOSTNAME}\n",
    "resolv.conf": RESOLV_CONF,
    "nsswitch.conf": _NSSWITCH,
    "profile": _PROFILE,
    "fstab": "",
    "host.conf": "multi on\n",
}
_SHADOW = "".join(f"{line.split(':')[0]}:*:19000:0:99999:7:::\n" for line in _USERS.splitlines())


def build(target: Path, *, host: Path = Path("/"), top_links: dict[str, str] | None = None) -> None:
    """Make the tree in the empty directory `target`; `top_links` are the host's own (bin -> usr/bin). OSError."""
    target.chmod(0o755)
    for name, mode in _DIRECTORIES:
        (target / name).mkdir()
        (target / name).chmod(mode)
    for name, to in (top_links or {}).items():
        (target / name).symlink_to(to)
    (target / "var/run").symlink_to("/run")
    (target / "var/lock").symlink_to("/run/lock")
    _make_up_etc(target / "etc")
    _make_home(target / "home/user")
    _Copier(host / "etc", target / "etc").copy_all()


def _make_up_etc(etc: Path) -> None:
    for name, text in MADE_UP_IN_ETC.items():
        (etc / name).write_text(text)
        (etc / name).chmod(0o644)
    (etc / "shadow").write_text(_SHADOW)
    (etc / "shadow").chmod(0o640)
    (etc / "mtab").symlink_to("/proc/self/mounts")
    (etc / "profile.d").mkdir()


def _make_home(home: Path) -> None:
    home.mkdir(mode=0o755)
    if os.geteuid() == 0:
        os.chown(home, USER_UID, USER_UID)


@final
class _Copier:
    """Copies the allowed part of the host's /etc, world-readable things only, within a bound of bytes."""

    def __init__(self, source: Path, target: Path) -> None:
        self._source = source
        self._target = target
        self._left_bytes = COPIED_BYTES_MAX

    def copy_all(self) -> None:
        for pattern in COPIED_FROM_ETC:
            for path in sorted(self._source.glob(pattern)):
                self._copy(path)

    def _copy(self, path: Path) -> None:
        target = self._target / path.relative_to(self._source)
        if target.exists() or target.is_symlink():
            return
        info = path.lstat()
        self._make_parents(target.parent)
        if stat.S_ISLNK(info.st_mode):
            self._copy_link(path, target)
        elif stat.S_ISDIR(info.st_mode) and info.st_mode & 0o005 == 0o005:
            self._copy_directory(path, target)
        elif stat.S_ISREG(info.st_mode) and info.st_mode & 0o004:
            self._copy_file(path, target, info)

    def _make_parents(self, directory: Path) -> None:
        missing = [path for path in (directory, *directory.parents) if not path.exists()]
        for path in reversed(missing):
            path.mkdir()
            path.chmod(0o755)

    def _copy_directory(self, path: Path, target: Path) -> None:
        target.mkdir()
        target.chmod(0o755)
        for child in sorted(path.iterdir()):
            self._copy(child)

    def _copy_link(self, path: Path, target: Path) -> None:
        """Keep a link into what the sandbox has; replace one that leads elsewhere (/etc in NixOS, say) by its file."""
        to = str(path.readlink())
        resolved = os.path.normpath(path.parent / to)
        if resolved.startswith(("/usr/", "/bin/", "/lib", "/sbin/", "/etc/")) or not path.is_file():
            target.symlink_to(to)
        elif (info := path.stat()).st_mode & 0o004:
            self._copy_file(path, target, info)

    def _copy_file(self, path: Path, target: Path, info: os.stat_result) -> None:
        self._left_bytes -= info.st_size
        if self._left_bytes < 0:
            return
        shutil.copyfile(path, target)
        target.chmod(stat.S_IMODE(info.st_mode) & 0o755)
        os.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns))
