"""The paper's tables and figures, and every other measured claim: one cell is one file in `results/`.

python -m reproduction table1                      # print a table from the stored results, beside the paper's figures
python -m reproduction table1 --run --data DIR     # measure what is missing first; stop it and run it again as you like
python -m reproduction pages                       # write the tables into README.md and docs/
"""
