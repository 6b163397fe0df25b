"""What the node's owner allows: /etc/kernpool/node.toml, root's own file, which no coordinator message can raise.

Keys (all optional):

    job_user = "kpjob"          # who jobs run as on a root install
    allow_root_jobs = false     # only with this may a job run as root
    allow_host_image = true     # sandboxes from this machine's own /usr
    image_dirs = ["/srv/images"]  # where images may lie; empty: anywhere
    allow_gpu = true            # GPUs are offered to jobs
    allow_sandboxes = true

A missing file is the default of each. A file that anybody but root may write is refused: it would be no ceiling.
"""

import difflib
import os
import pwd
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, final

from kernpool_agent.errors import ConfigError, FatalError, RefusedError
from kernpool_mesh.messages import Template


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """The owner's word."""

    job_user: str = "kpjob"
    """Name of the user that jobs run as on a root install."""
    allow_root_jobs: bool = False
    allow_host_image: bool = True
    image_dirs: tuple[str, ...] = ()
    """Directories under which an image's root filesystem must lie; empty: anywhere."""
    allow_gpu: bool = True
    allow_sandboxes: bool = True
    stated: bool = False
    """There is a file: an owner has spoken."""

    def check_template(self, template: Template) -> None:
        """Raise RefusedError(refused) when sandboxes from this template are not allowed here."""
        if not self.allow_sandboxes:
            raise RefusedError("refused", "this node's owner allows no sandboxes (allow_sandboxes in node.toml)")
        if template.image == "host":
            if not self.allow_host_image:
                raise RefusedError("refused", "this node's owner does not allow image: host (allow_host_image)")
        elif self.image_dirs and not any(_is_below(template.image, directory) for directory in self.image_dirs):
            raise RefusedError(
                "refused", f"image {template.image} is not below {', '.join(self.image_dirs)} (image_dirs in node.toml)"
            )


@final
@dataclass(frozen=True, slots=True)
class User:
    """A user of the node."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str


def load(path: Path, *, must_be_roots: bool = True) -> Ceiling:
    """Read the owner's file; a missing one gives the defaults.

    Raises ConfigError when it is malformed, has an unknown key, or (must_be_roots) others than root may write it.
    """
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            data = tomllib.loads(file.read().decode("utf-8"))
    except FileNotFoundError:
        return Ceiling()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from error
    if must_be_roots and (status.st_uid != 0 or status.st_mode & 0o022):
        raise ConfigError(f"{path} must belong to root and be writable by root alone (chown root, chmod go-w)")
    return Ceiling(**{key: _checked(path, key, value) for key, value in data.items()}, stated=True)


def job_user(ceiling: Ceiling, jobs_as: str, environ: Mapping[str, str] = os.environ) -> User:
    """Return who jobs run as.

    jobs_as "job_user" (the systemd install): `job_user` of the ceiling, whoever the agent runs as; the spawner of
    kp-work.service has the right to become it. jobs_as "starter" (embedded): an agent without root has its own user
    only; with root it is who started the agent: SUDO_UID if set, else root itself, unless an owner's file stands there
    and does not allow it. Raises FatalError when that user does not exist or is not allowed.
    """
    if jobs_as == "starter" and os.geteuid() != 0:
        return _by_uid(os.geteuid())
    if jobs_as == "starter":
        sudo_uid = environ.get("SUDO_UID", "")
        user = _by_uid(int(sudo_uid) if sudo_uid.isdecimal() else 0)
        if user.uid != 0 or not ceiling.stated or ceiling.allow_root_jobs:
            return user
    user = _by_name(ceiling.job_user)
    if user.uid == 0 and not ceiling.allow_root_jobs:
        raise FatalError("job_user is root, but node.toml does not say allow_root_jobs = true")
    return user


def _checked(path: Path, key: str, value: Any) -> Any:
    defaults = {f.name: f.default for f in fields(Ceiling) if f.name != "stated"}
    if key not in defaults:
        near = difflib.get_close_matches(key, defaults, n=1)
        raise ConfigError(f"{path}: unknown key {key}" + (f"; did you mean {near[0]}?" if near else ""))
    if isinstance(defaults[key], tuple):
        if not isinstance(value, list) or not all(isinstance(v, str) and v.startswith("/") for v in value):
            raise ConfigError(f"{path}: {key} = {value!r}: expected a list of absolute paths")
        return tuple(value)
    if type(value) is not type(defaults[key]):
        wanted = "true or false" if isinstance(defaults[key], bool) else "text"
        raise ConfigError(f"{path}: {key} = {value!r}: expected {wanted}")
    return value


def _by_name(name: str) -> User:
    try:
        return _user(pwd.getpwnam(name))
    except KeyError:
        raise FatalError(
            f"jobs are to run as user {name}, which does not exist here; "
            f"make it (useradd --system {name}) or set job_user in node.toml"
        ) from None


def _by_uid(uid: int) -> User:
    try:
        return _user(pwd.getpwuid(uid))
    except KeyError:  # a container's arbitrary uid has no passwd entry
        return User(str(uid), uid, os.getgid(), (), os.environ.get("HOME", "/"))


def _user(entry: pwd.struct_passwd) -> User:
    groups = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
    return User(entry.pw_name, entry.pw_uid, entry.pw_gid, groups, entry.pw_dir)


def _is_below(path: str, directory: str) -> bool:
    # realpath: a link inside an allowed directory must not lead out of it.
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(directory))
