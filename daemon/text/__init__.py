"""Between text and tokens: the chat template, grammars, and a reply's parts."""
