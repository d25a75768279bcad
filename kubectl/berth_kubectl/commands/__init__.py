"""One module for each verb: its arguments, its rows as pure functions of objects, and its run."""
