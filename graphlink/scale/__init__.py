"""Graphs of more ranks, made from those that were recorded."""
