"""The flags of a script: its help is its docstring, line by line as it is written."""

import argparse


def flags_of(doc: str | None) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
