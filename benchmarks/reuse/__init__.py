"""What schedules of other models are worth: recorded once on hardware, computed often from the recorded table.

table.py       the rows of a table, appended one at a time; which donors a held-out model may use
recording.py   the passes that measure
held_out.py    stores that hold what a held-out model may know
figures.py     value of search, matrix of donors, pools, time to the best known: arithmetic on a table
zero.py        schedules that are taken unmeasured, looked up in a table
text.py        the figures as Markdown
picture.py     the matrix as a picture
"""
