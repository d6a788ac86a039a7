"""What schedules of other models are worth: recorded once on hardware, computed often from the recorded table.

table.py       the rows of a table, appended one at a time; which donors a held-out model may use
networks.py    the tasks of models, and what schedules are worth in a model
recording.py   the passes that measure
turns.py       candidates timed in turns with the default
held_out.py    stores that hold what a held-out model may know
zero.py        what compiling takes unmeasured
figures.py     value of search, matrix of donors, pools, time to the best known: arithmetic on a table
text.py        the figures as Markdown
picture.py     the matrix as a picture
"""
