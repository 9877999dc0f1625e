"""One file per command of `weft`: `add_parser` says what it takes, `run` does it and returns the exit code."""
