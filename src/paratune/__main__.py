"""`python -m paratune`, and so `torchrun -m paratune`."""

from paratune.cli import main

if __name__ == "__main__":
    main()
