"""All that a recording lacks, what that costs in the graph, and the line that would record it."""
