"""What is measured beside the paper's tables; `python -m reproduction TARGET --run` calls it."""
