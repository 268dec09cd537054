"""A set of tasks and one pass over it:

    TaskSet -> record -> account -> intend -> admit -> act -> TaskPass

Each stage is a function of task_pass.py, the first that of record.py. It happens once a pass (`run` has the order), and
makes a value from those before it. None sees a spec or a status: what they say of a set is its Policy.
"""
