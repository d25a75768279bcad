"""Generate the reference pages of the documents from the code."""
