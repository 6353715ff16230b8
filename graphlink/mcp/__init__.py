"""Answers for agents: verbs as tools of the Model Context Protocol."""
