"""`python -m target_engine` is `target-engine`."""

from target_engine.cli import main

if __name__ == "__main__":
    main()
