"""What reusing schedules of other models gains: measured once into a table, from which all figures are computed.

table.py       the rows of a table, appended one at a time; which donors a held-out model may use
budgets.py     how much time and how many trials each pass spends
networks.py    the tasks of models, and a whole model's time with the best known schedules
recording.py   the passes that measure
turns.py       candidates timed in turns with the default
known.py       what a table knows of a task, as a store has it
held_out.py    stores that hold what a held-out model may know
figures.py     gains of search, by donor model, by pool of models; time to the best known: arithmetic on a table
text.py        the figures as Markdown
picture.py     the matrix as a picture
"""
