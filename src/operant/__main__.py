"""The command ``operant``, also as ``python -m operant``; whoever stops it while it still loads is not shown where."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from operant.cli import app

        app()
    except KeyboardInterrupt:
        print("stopped as asked", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
