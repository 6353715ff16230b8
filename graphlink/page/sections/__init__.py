"""The sections of the page of a run, one module each: outputs in, ``parts.Section`` out."""
