"""Templates and commands: from API bodies to link messages and back, without a model where it would cost."""

from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from typing import Any, Final

from kernpool.bodies import CommandBody, CreateSandboxesBody, TemplateBody
from kernpool_coordinator.errors import InvalidError, TooLargeError
from kernpool_mesh.messages import Command, CommandResult, Limits, Template

REQUEST_BYTES_MAX: Final = 2 << 20
"""Of everything that a create says beside the ids: it travels to each node in one message."""


def check_size(body: CreateSandboxesBody) -> None:
    """Refuse a request that would fit into no message. Raises TooLargeError."""
    texts = [*body.env.items(), *body.labels.items(), *body.template.env.items()]
    size = sum(len(name) + len(value) for name, value in texts)
    if body.command is not None:
        command = body.command
        size += len(command.stdin_b64) + sum(map(len, command.argv))
        size += sum(len(name) + len(value) for name, value in command.env.items())
    if size > REQUEST_BYTES_MAX:
        raise TooLargeError(
            f"the request has {size} bytes of texts and input, at most {REQUEST_BYTES_MAX} are taken",
            hint="write large input into a file of the sandbox",
        )


def template_of(body: TemplateBody) -> Template:
    """Make the message's template."""
    limits = body.limits
    return Template(
        image=body.image,
        limits=Limits(
            cpu_millis=round((limits.cpus or 0) * 1000),
            memory_mib=limits.memory_mib or 0,
            disk_mib=limits.disk_mib or 0,
            pids=limits.pids or 0,
        ),
        user=body.user,
        cwd=body.cwd,
        env=body.env,
        network=body.network,
        allow_setuid=body.allow_setuid,
    )


def template_body(template: Template) -> dict[str, Any]:
    """Give a TemplateBody."""
    limits = template.limits
    return {
        "image": template.image,
        "limits": {
            "cpus": limits.cpu_millis / 1000 if limits.cpu_millis else None,
            "memory_mib": limits.memory_mib or None,
            "disk_mib": limits.disk_mib or None,
            "pids": limits.pids or None,
        },
        "user": template.user,
        "cwd": template.cwd,
        "env": template.env,
        "network": template.network,
        "allow_setuid": template.allow_setuid,
    }


def command_of(body: CommandBody) -> Command:
    """Make the message's command. Raises InvalidError."""
    try:
        stdin = b64decode(body.stdin_b64, validate=True)
    except (Base64Error, ValueError):
        raise InvalidError("command.stdin_b64 is not valid base64") from None
    for text in (*body.argv, body.cwd, body.user, *body.env, *body.env.values()):
        if "\0" in text:
            raise InvalidError("a NUL character cannot stand in a command")
    return Command(
        argv=body.argv,
        env=body.env,
        cwd=body.cwd,
        user=body.user,
        timeout_s=body.timeout_s,
        stdin=stdin,
        output_bytes_max=body.output_bytes_max,
    )


def result_body(result: CommandResult) -> dict[str, Any]:
    """Give a CommandResultBody."""
    return {
        "reason": result.reason.value,
        "exit_code": result.exit_code,
        "stdout_b64": b64encode(result.stdout).decode("ascii") if result.stdout else "",
        "stderr_b64": b64encode(result.stderr).decode("ascii") if result.stderr else "",
        "stdout_bytes_dropped": result.stdout_bytes_dropped,
        "stderr_bytes_dropped": result.stderr_bytes_dropped,
        "detail": result.detail,
        "first_output_ms": result.first_output_ms if result.first_output_ms >= 0 else None,
    }
