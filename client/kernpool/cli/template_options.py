"""The options that say what a sandbox is made from; sandboxes of equal ones share a parked pool."""

import argparse

from kernpool.cli.common import CPUS, NATURAL, SIZE_MIB
from kernpool.options import CreateOptions


def add_template_arguments(parser: argparse.ArgumentParser) -> None:
    """Add them."""
    parser.add_argument(
        "--image",
        default="host",
        metavar="IMAGE",
        help="`host` (the node's own programs), or the path of a root filesystem directory or tar on the node (host)",
    )
    parser.add_argument("--cpus", type=CPUS, metavar="N", help="at most so many CPUs: 0.5, 2")
    parser.add_argument("--memory", type=SIZE_MIB, metavar="SIZE", help="at most so much memory: 512m, 2g")
    parser.add_argument("--disk", type=SIZE_MIB, metavar="SIZE", help="at most so much written: 512m, 2g")
    parser.add_argument("--pids", type=NATURAL, metavar="N", help="at most so many processes")
    parser.add_argument(
        "--user", default="root", metavar="NAME", help="who commands run as (root, without power outside)"
    )
    parser.add_argument("--cwd", default="/", metavar="DIR", help="where commands start (/)")
    parser.add_argument("--allow-setuid", action="store_true", help="let programs of the image gain privileges inside")


def template_options(arguments: argparse.Namespace) -> CreateOptions:
    """Give the options as the SDK takes them."""
    options: CreateOptions = {"image": arguments.image, "user": arguments.user, "cwd": arguments.cwd}
    if arguments.cpus is not None:
        options["cpus"] = arguments.cpus
    if arguments.memory is not None:
        options["memory"] = arguments.memory
    if arguments.disk is not None:
        options["disk"] = arguments.disk
    if arguments.pids is not None:
        options["pids"] = arguments.pids
    if arguments.allow_setuid:
        options["allow_setuid"] = True
    return options
