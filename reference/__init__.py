"""The reference pages of the documents, generated from the code."""
