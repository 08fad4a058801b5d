"""`python -m bentpipe` is the same program as `bentpipe`."""

from bentpipe.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
