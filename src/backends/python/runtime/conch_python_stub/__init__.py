"""The process that serves an instance of a model in Python."""
