"""A report of what deaths make a project's steps do twice: `pytest --durable-crashes`.

Each test that has passed is executed again for each commit of each run of its harnesses, once with a death before that
commit and once with a death after it. What leaves the process meanwhile is counted and compared.
"""
