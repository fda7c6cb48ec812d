"""The command ``operant``, also as ``python -m operant``."""

import sys


def main() -> None:
    try:
        from operant.cli import app

        app()
    except KeyboardInterrupt:  # pressed while modules are still being imported
        print("stopped", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
