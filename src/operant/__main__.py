"""The command ``operant``, also as ``python -m operant``."""

import sys


def main() -> None:
    try:
        from operant.cli import app

        app()
    except KeyboardInterrupt:  # pressed while modules are still being imported
        print("stopped", file=sys.stderr)
        sys.exit(130)
    except Exception as error:  # outside the part of a command that handles errors
        from operant.cli.output import CANNOT_RUN, sentence_of

        print(f"cannot run: {sentence_of(error)}", file=sys.stderr)
        sys.exit(CANNOT_RUN)


if __name__ == "__main__":
    main()
