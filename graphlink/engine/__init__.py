"""Runs file-to-file jobs, on this machine or on a Ray cluster, and brings files from and to other file systems.

It knows nothing of what a job does: a job is a function of one argument, both picklable, that reads and writes files.
"""
