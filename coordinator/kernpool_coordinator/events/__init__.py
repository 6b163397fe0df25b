"""Events: every change of anything, with who and why."""
