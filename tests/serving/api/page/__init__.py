"""A package only so that its tests share one browser: pytest has fixtures of packages, and none of folders."""
