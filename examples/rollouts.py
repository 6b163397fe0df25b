"""Many sandboxes from Python, as an RL trainer uses them: a batch of rollouts, each in a closed machine of its own."""

import sys

import kernpool

PROGRAMS = {
    "adds": "print(6 * 7)",
    "fails": "import sys; sys.exit('no idea')",
    "loops": "while True: pass",
    "escapes": "open('/etc/shadow').read()",
}
COPIES = 15


def main() -> int:
    """Run each program in its own sandboxes and count the rewards."""
    for name, program in PROGRAMS.items():
        batch = kernpool.sandboxes.create(
            count=COPIES,
            command=["python3", "-c", program],
            timeout_s=2,
            memory="256m",
            ttl="1m",
            remove_after=True,
        )
        results = [item.result for item in batch if item.result is not None]
        reward = sum(result.ok and result.stdout == b"42\n" for result in results)
        ends = {f"{result.reason} {result.exit_code}" for result in results}
        print(f"{name:8} {reward} of {len(batch)} right; ended by: {', '.join(sorted(ends)) or batch[0].error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
