"""Files that start vLLM: what they start, where each word stands, and edits of those words. Pure.

Each reader turns a file's text into launches. A launch keeps the place of each of its words in the text, so
that an edit changes these words only, and comments and layout stay as they are.
"""
